"use strict";
// Shows which GPUs a request holds: chosen with a click or the keyboard on any of its buttons, ended by Escape.
(() => {
  const buttons = [...document.querySelectorAll("[data-request]")], said = document.querySelector(".chosen");
  let chosen = null;
  function choose(request) {
    chosen = request === chosen ? null : request;
    for (const button of buttons) {
      const on = button.dataset.request === chosen;
      button.classList.toggle("on", on);
      button.setAttribute("aria-pressed", on);
    }
    const held = buttons.filter((button) => button.matches(".gpu.on")).length;
    said.textContent = chosen === null ? "" : `${chosen} holds ${held} GPU${held === 1 ? "" : "s"}.`;
  }
  for (const button of buttons) {
    button.setAttribute("aria-pressed", "false");
    button.addEventListener("click", () => choose(button.dataset.request));
  }
  document.addEventListener("keydown", (event) => { if (event.key === "Escape" && chosen !== null) choose(chosen); });
})();
