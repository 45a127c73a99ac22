"use strict";
// Browsers refuse workers to pages that are opened from a disk. There, the script of the search's worker runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe"), waiting = [];
      this.postMessage = (data) => waiting.push(data);
      frame.hidden = true;
      frame.srcdoc = "<!doctype html><title>search</title>";
      frame.addEventListener("load", () => {
        const inside = frame.contentWindow, script = inside.document.createElement("script");
        inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
        script.addEventListener("load", () => {
          this.postMessage = (data) => inside.dispatchEvent(new inside.MessageEvent("message", { data }));
          waiting.forEach(this.postMessage);
        });
        script.src = url;
        inside.document.head.append(script);
      }, { once: true });
      document.documentElement.append(frame);
    }
  };
}
