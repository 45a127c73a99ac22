"use strict";
// Draws each schedule of the report: a Gantt chart over a memory chart, on one time axis. One bar trace a kind of
// operator; in a chart of very many events, those that are short on the screen are one path a kind, since each bar is an
// element of the page, and no more of them than can be seen. A chart is made when its tab is first opened.
(() => {
  const report = JSON.parse(document.getElementById("report-data").textContent), data = report.entries, names = report.names;
  const palette = ["#4c78a8", "#f58518", "#54a24b", "#b279a2", "#72b7b2", "#ff9da6", "#9d755d", "#a5a84e"];
  const colours = { load: "#8797ad", copy: "#d1495b", host_read: "#e0b93b", "other kinds": "#a9a9a9" };
  const shapes = ["", "/", "\\", "x", "-", "|", "+", "."]; // of the bars, for those who do not tell the colours apart
  const dashes = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];
  const MOST_ROWS = 500; // of the table of events
  const MOST_TEXT = 800; // names inside of bars only where they can be read
  const MOST_BARS = 4000; // above it, what is short is drawn as paths, what is too short to be seen together, anew after each zoom
  const SHORT = 100; // parts of the width in view: what takes less is short
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const escaped = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

  function unitFor(ns) {
    return ns >= 1e9 ? ["s", 1e9] : ns >= 1e6 ? ["ms", 1e6] : ns >= 1e3 ? ["µs", 1e3] : ["ns", 1];
  }
  function time(ns) {
    const [unit, scale] = unitFor(ns);
    return `${(ns / scale).toPrecision(ns / scale >= 1000 ? 4 : 3)} ${unit}`;
  }
  function bytes(size) {
    const power = size < 1024 ? 0 : Math.min(4, Math.floor(Math.log2(size) / 10));
    return power ? `${(size / 1024 ** power).toPrecision(4)} ${["", "KiB", "MiB", "GiB", "TiB"][power]}` : `${size} B`;
  }

  // Rows of the chart: each lane once for each timeline that uses it, the first lane on top.
  function rowsOf(entry) {
    const used = entry.timelines.map((timeline) => new Set(timeline.lane));
    const rows = [];
    entry.lanes.forEach((lane, l) => entry.timelines.forEach((timeline, t) => {
      if (used[t].has(l)) rows.push({ lane, key: `${l},${t}`, first: t === 0 || !used[0].has(l), source: timeline.source });
    }));
    let y = 0;
    rows.forEach((row, r) => { y += r === 0 ? 0.5 : row.first ? 1.18 : 0.9; row.y = y; });
    const label = (row) => entry.timelines.length === 1 ? escaped(row.lane)
      : `${row.first ? `<b>${escaped(row.lane)}</b> ` : ""}${row.source === "simulated" ? "predicted" : row.source}`;
    return { rows, at: new Map(rows.map((row) => [row.key, row.y])), labels: rows.map(label), height: y + 0.5 };
  }

  function hover(timeline, lane, i) {
    const kind = timeline.kinds[timeline.kind[i]], submodel = timeline.submodel[i];
    return `<b>${escaped(names[timeline.name[i]])}</b><br>${escaped(kind)} on ${escaped(lane)}` +
      `<br>${time(timeline.start[i])} to ${time(timeline.start[i] + timeline.time[i])} (${time(timeline.time[i])})` +
      `<br>${bytes(timeline.bytes[i])}${submodel >= 0 ? `, submodel ${submodel}` : ""}` +
      `<br><i>${timeline.source === "simulated" ? "predicted" : timeline.source}</i>`;
  }

  function colourOf(entry, group) {
    return colours[entry.groups[group]] || palette[group % palette.length];
  }

  // Black or white, whichever is easier to read on a colour: at least 4.5 to 1 on any.
  function inkOn(colour) {
    const [r, g, b] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16) / 255)
      .map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000000" : "#ffffff";
  }

  // Events of each row by start, made once; events of one row do not overlap.
  function sorted(entry) {
    if (!entry.sorted) {
      entry.sorted = new Map();
      entry.timelines.forEach((timeline, t) => {
        timeline.lane.forEach((lane, i) => {
          const key = `${lane},${t}`;
          if (!entry.sorted.has(key)) entry.sorted.set(key, []);
          entry.sorted.get(key).push(i);
        });
        entry.lanes.forEach((lane, l) => (entry.sorted.get(`${l},${t}`) || []).sort((a, b) => timeline.start[a] - timeline.start[b]));
      });
    }
    return entry.sorted;
  }

  // What is to be drawn of a row between two times: single events, and runs of events too short to be seen apart
  // (shorter than `least`, within one column of that width), as lists of positions.
  function visible(timeline, order, from, to, least) {
    let low = 0, high = order.length;
    while (low < high) {
      const middle = (low + high) >> 1, i = order[middle];
      if (timeline.start[i] + timeline.time[i] < from) low = middle + 1; else high = middle;
    }
    const drawn = [];
    let run = null, column = -1;
    for (let at = low; at < order.length && timeline.start[order[at]] <= to; at++) {
      const i = order[at], own = least ? Math.floor(timeline.start[i] / least) : 0;
      if (timeline.time[i] >= least) { drawn.push([i]); run = null; continue; }
      if (run && own === column) { run.push(i); continue; }
      run = [i]; column = own; drawn.push(run);
    }
    return drawn;
  }

  const amount = (entry) => entry.timelines.reduce((sum, timeline) => sum + timeline.lane.length, 0);
  const crowded = (entry) => amount(entry) > MOST_BARS;

  // The kinds of a chart as traces: bars, and paths of what is short.
  function bars(entry, rows, scale, by, range, patterned) {
    const few = amount(entry) <= MOST_TEXT, paths = new Map(), span = range[1] - range[0];
    const traces = entry.groups.map((name, group) => ({
      type: "bar", orientation: "h", name: escaped(name), legendrank: group, legendgroup: group, x: [], y: [], base: [], hovertext: [], text: [], width: 0.84,
      hoverinfo: "text", marker: { color: by === "submodel" ? [] : colourOf(entry, group), line: { width: few ? 0.7 : 0, color: css("--band") } },
      showlegend: by === "kind", textposition: "none",
    }));
    const least = crowded(entry) ? span * scale / Math.max(200, Math.min(1200, MOST_BARS / rows.rows.length)) : 0;
    const [from, to] = crowded(entry) ? [range[0] - span / 2, range[1] + span / 2].map((x) => x * scale) : [0, Infinity];
    entry.timelines.forEach((timeline, t) => entry.lanes.forEach((name, lane) => {
      const order = sorted(entry).get(`${lane},${t}`), y = rows.at.get(`${lane},${t}`);
      if (!order) return;
      for (const run of visible(timeline, order, from, to, least)) {
        const longest = run.reduce((a, b) => (timeline.time[b] > timeline.time[a] ? b : a)), last = run[run.length - 1];
        const group = timeline.group[longest], submodel = by === "submodel" ? timeline.submodel[longest] : -1;
        const colour = submodel < 0 ? colourOf(entry, group) : palette[submodel % palette.length];
        const start = timeline.start[run[0]] / scale, length = (timeline.start[last] + timeline.time[last]) / scale - start;
        const text = hover(timeline, name, longest) + (run.length > 1 ? `<br>and ${run.length - 1} more here: zoom in` : "");
        if (crowded(entry) && length < span / SHORT) {
          addToPath(paths, traces[group], colour, from / scale, start, Math.max(length, least / scale / 4), y, text);
          continue;
        }
        const trace = traces[group];
        trace.x.push(length);
        trace.base.push(start);
        trace.y.push(y);
        trace.hovertext.push(text);
        trace.text.push(few ? escaped(names[timeline.name[longest]]) : "");
        if (by === "submodel") trace.marker.color.push(colour);
      }
    }));
    const ink = (colour) => (Array.isArray(colour) ? colour.map(inkOn) : inkOn(colour));
    if (few) traces.forEach((trace) => Object.assign(trace, { textposition: "inside", insidetextanchor: "middle", textangle: 0, constraintext: "inside", insidetextfont: { size: 11, color: ink(trace.marker.color) } }));
    if (patterned && by === "kind") {
      const pattern = (group, colour) => ({ shape: shapes[group % shapes.length], fillmode: "overlay", fgcolor: inkOn(colour), fgopacity: 0.3, size: 7, solidity: 0.25 });
      traces.forEach((trace) => { trace.marker.pattern = pattern(trace.legendrank, trace.marker.color); });
      paths.forEach((path) => { path.fillpattern = pattern(path.legendrank, path.fillcolor); });
    }
    paths.forEach((path) => {
      const trace = traces[path.legendrank];
      addPoints(path, "", [path.x[0], path.y[path.y.length - 1]]);
      // A kind of short events alone stands in the legend by a bar without length.
      if (trace.x.length === 0) [trace.x, trace.base, trace.y].forEach((column) => column.push(0));
    });
    return [...paths.values(), ...traces.filter((trace) => trace.x.length > 0)];
  }

  // One more rectangle of the path that all short events of a kind and colour share. It is drawn in one stroke: along the
  // lower edge of each row and back, and down left of all that is in view, where it encloses nothing.
  function addToPath(paths, like, colour, left, start, length, y, text) {
    const key = `${like.legendgroup},${colour}`, low = y + 0.42, high = y - 0.42, end = start + length;
    if (!paths.has(key)) {
      paths.set(key, {
        type: "scatter", mode: "none", fill: "toself", fillcolor: colour, hoveron: "points", hoverinfo: "text", hoverlabel: { bgcolor: colour },
        name: like.name, legendrank: like.legendrank, legendgroup: like.legendgroup, showlegend: false, x: [left], y: [low], hovertext: [""],
      });
    }
    const path = paths.get(key), before = path.y[path.y.length - 1];
    if (before !== low) addPoints(path, "", [left, before], [left, low]);
    addPoints(path, text, [start, low], [start, high], [end, high], [end, low]);
  }

  function addPoints(path, text, ...points) {
    for (const [x, y] of points) { path.x.push(x); path.y.push(y); path.hovertext.push(text); }
  }

  // The steps of each device's memory; of a crowded chart those near a range.
  function memory(entry, scale, range) {
    const span = range[1] - range[0], [from, to] = crowded(entry) ? [(range[0] - span) * scale, (range[1] + span) * scale] : [0, Infinity];
    return entry.memory.filter((line) => line.sizes.some((size) => size > 0)).map((line, n) => {
      const first = Math.max(0, line.times.findIndex((t) => t >= from) - 1), after = line.times.findIndex((t) => t > to);
      const last = after < 0 ? line.times.length : after + 1;
      return {
        type: "scatter", mode: "lines", line: { shape: "hv", width: 1.8, color: palette[n % palette.length], dash: dashes[n % dashes.length] }, yaxis: "y2",
        x: line.times.slice(first, last).map((t) => t / scale), y: line.sizes.slice(first, last).map((size) => size / 2 ** 20), legend: "legend2",
        name: `${escaped(line.device)}: ${line.peak} of ${line.limit}`, hovertemplate: `%{y:.2f} MiB<extra>${escaped(line.device)}</extra>`,
      };
    });
  }

  // A vertical line with a word on top.
  function mark(x, text, colour, dash, anchor, chart) {
    return {
      shape: { type: "line", x0: x, x1: x, y0: 0, y1: 1, yref: "paper", line: { color: colour, width: 1.5, dash } },
      note: { x, y: 1, yref: "paper", yanchor: "bottom", xanchor: anchor, text, showarrow: false, font: { color: colour, size: 12 } },
    };
  }

  function layout(entry, rows, unit, scale, width) {
    const sizes = entry.memory.map((line) => line.sizes.reduce((a, b) => Math.max(a, b), 0)), lines = sizes.filter((size) => size > 0).length;
    const wrapped = Math.max(1, Math.ceil(lines / Math.max(1, Math.floor((width - 200) / 210)))); // rows of the memory's legend
    const heights = { gantt: 24 * rows.height + 10, memory: lines ? 130 : 0, gap: lines ? 44 + 18 * wrapped : 0 };
    const plot = heights.gantt + heights.memory + heights.gap;
    const end = Math.max(entry.latency, ...entry.timelines.map((timeline) => timeline.latency)) / scale;
    const marks = [mark(entry.latency / scale, `predicted ${time(entry.latency)}`, css("--mark"), "solid", "right")];
    if (entry.bound) marks.push(mark(entry.bound / scale, `bound ${time(entry.bound)}`, css("--bound"), "dash", "right"));
    // Two words at almost the same place: the bound's goes one line up.
    if (entry.bound && (entry.latency - entry.bound) / scale < end * 150 / (width - 160)) marks[1].note.yshift = 15;
    const axis = { gridcolor: css("--line"), zerolinecolor: css("--line"), linecolor: css("--line") };
    return {
      height: plot + 174, barmode: "overlay", bargap: 0, hovermode: "closest", dragmode: "zoom",
      margin: { l: 10, r: 14, t: 58, b: 116 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: css("--band"),
      font: { color: css("--ink"), family: "system-ui, 'Segoe UI', Roboto, 'Liberation Sans', sans-serif", size: 13 },
      hoverlabel: { bgcolor: css("--card"), bordercolor: css("--wire"), font: { color: css("--ink") }, align: "left" },
      uniformtext: { minsize: 10, mode: "hide" },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: css("--soft"), activecolor: css("--accent") },
      xaxis: { ...axis, anchor: lines ? "y2" : "y", title: { text: unit, standoff: 4 }, range: [0, end * 1.01], autorangeoptions: { minallowed: 0 }, minallowed: 0, maxallowed: end * 1.01 },
      yaxis: { ...axis, domain: [1 - heights.gantt / plot, 1], range: [rows.height, 0], fixedrange: true, tickvals: rows.rows.map((row) => row.y), ticktext: rows.labels, showgrid: false, zeroline: false, automargin: true },
      yaxis2: { ...axis, domain: [0, lines ? heights.memory / plot : 0], fixedrange: true, range: [0, Math.max(...sizes, 1) * 1.06 / 2 ** 20], title: { text: "MiB held" }, visible: lines > 0, automargin: true, nticks: 4 },
      legend: { orientation: "h", x: 0, xanchor: "left", y: -48 / plot, yanchor: "top" },
      legend2: { orientation: "h", x: 0, xanchor: "left", y: (heights.memory + 4) / plot, yanchor: "bottom", font: { size: 12 } },
      shapes: marks.map((m) => m.shape), annotations: marks.map((m) => m.note),
    };
  }

  // The whole chart, of a range if one is given and of what is in view otherwise.
  function draw(section, range) {
    const entry = data[+section.dataset.entry], place = section.querySelector(".gantt");
    const by = section.querySelector(".colours")?.value ?? "kind", rows = rowsOf(entry);
    const patterned = section.querySelector(".patterns").checked;
    const [unit, scale] = unitFor(entry.latency);
    const made = layout(entry, rows, unit, scale, printing ? PRINTED_WIDTH : place.clientWidth);
    if (range || place.layout) made.xaxis.range = [...(range || place.layout.xaxis.range)];
    if (printing) Object.assign(made, { width: PRINTED_WIDTH, autosize: false });
    const drawn = Plotly.react(place, [...bars(entry, rows, scale, by, made.xaxis.range, patterned), ...memory(entry, scale, made.xaxis.range)], made, {
      responsive: true, displaylogo: false, scrollZoom: true, doubleClick: false,
      modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "resetScale2d", "zoomIn2d", "zoomOut2d"],
      toImageButtonOptions: { format: "svg", filename: "tvm_sched" },
    });
    drawn.then(() => performance.mark("tvm_sched drawn")); // for benchmarks/report_page.py
    if (!place.dataset.ready) prepare(section, place, made.xaxis.maxallowed);
    if (section.querySelector(".events").open) list(section);
  }

  // What the chart shows, as a table: for those who do not see it, and to search in.
  function list(section) {
    const entry = data[+section.dataset.entry], body = section.querySelector(".events tbody"), found = [];
    const scale = unitFor(entry.latency)[1], [from, to] = section.querySelector(".gantt").layout.xaxis.range.map((x) => x * scale);
    entry.timelines.forEach((timeline) => timeline.start.forEach((start, i) => {
      if (start <= to && start + timeline.time[i] >= from) found.push([start, timeline, i]);
    }));
    found.sort((a, b) => a[0] - b[0]);
    body.replaceChildren(...found.slice(0, MOST_ROWS).map(([start, timeline, i]) => {
      const row = document.createElement("tr");
      const kind = timeline.kinds[timeline.kind[i]], source = timeline.source === "simulated" ? "predicted" : timeline.source;
      [names[timeline.name[i]], kind, entry.lanes[timeline.lane[i]], time(start), time(timeline.time[i]), bytes(timeline.bytes[i]), source]
        .forEach((text) => row.insertCell().append(text));
      return row;
    }));
    const rest = found.length - MOST_ROWS;
    section.querySelector(".events .hint").textContent = rest > 0 ? `The first ${MOST_ROWS} of ${found.length}: zoom in to see the others.` : `${found.length} in view.`;
  }

  // Zooming and moving without the mouse, and a wheel that scrolls the page unless Ctrl is held.
  function prepare(section, place, end) {
    place.dataset.ready = "yes";
    const entry = data[+section.dataset.entry], events = section.querySelector(".events");
    const show = (from, to) => {
      const width = Math.min(to - from, end), start = Math.max(0, Math.min(from, end - width));
      if (crowded(entry)) draw(section, [start, start + width]); else Plotly.relayout(place, { "xaxis.range": [start, start + width] });
    };
    const zoom = (factor) => {
      const [from, to] = place.layout.xaxis.range, middle = (from + to) / 2, half = (to - from) / 2 * factor;
      if (factor === 0) show(0, end); else show(middle - half, middle + half);
    };
    section.querySelectorAll("[data-zoom]").forEach((button) => button.addEventListener("click", () => zoom(+button.dataset.zoom)));
    place.on("plotly_doubleclick", () => show(0, end));
    place.addEventListener("wheel", (event) => { if (!event.ctrlKey && !event.metaKey) event.stopPropagation(); }, { capture: true });
    place.addEventListener("keydown", (event) => {
      const [from, to] = place.layout.xaxis.range, step = (to - from) / 4;
      const moves = { ArrowLeft: () => show(from - step, to - step), ArrowRight: () => show(from + step, to + step), "+": () => zoom(0.5), "-": () => zoom(2), "0": () => zoom(0) };
      if (moves[event.key]) { event.preventDefault(); moves[event.key](); }
    });
    place.on("plotly_relayout", (change) => {
      if (!Object.keys(change).some((key) => key.startsWith("xaxis.range"))) return;
      if (crowded(entry)) draw(section); else if (events.open) list(section);
    });
    events.addEventListener("toggle", () => { if (events.open) list(section); });
    section.querySelectorAll(".colours, .patterns").forEach((choice) => choice.addEventListener("change", () => draw(section)));
  }

  const sections = [...document.querySelectorAll(".entry")], tabs = document.querySelector(".tabs");
  const PRINTED_WIDTH = 960; // fits A4 and Letter, landscape
  let printing = false;
  function open(n) {
    sections.forEach((section, s) => section.classList.toggle("hidden", s !== n));
    [...tabs.children].forEach((tab, t) => { tab.setAttribute("aria-selected", t === n); tab.tabIndex = t === n ? 0 : -1; });
    document.querySelectorAll(".summary tbody tr").forEach((row, r) => row.classList.toggle("on", r === n && sections.length > 1));
    draw(sections[n]);
  }
  if (sections.length > 1) {
    tabs.setAttribute("role", "tablist");
    sections.forEach((section, n) => {
      const tab = document.createElement("button");
      tab.textContent = document.querySelector(`a[data-entry="${n}"]`).textContent;
      tab.id = `tab-${n}`;
      tab.setAttribute("role", "tab");
      tab.setAttribute("aria-controls", section.id);
      section.setAttribute("role", "tabpanel");
      section.setAttribute("aria-labelledby", tab.id);
      tab.addEventListener("click", () => open(n));
      tabs.append(tab);
    });
    tabs.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key], at = [...tabs.children].indexOf(document.activeElement);
      if (!step || at < 0) return;
      const next = (at + step + sections.length) % sections.length;
      event.preventDefault(); open(next); tabs.children[next].focus();
    });
  }
  document.querySelectorAll("a[data-entry]").forEach((link) => link.addEventListener("click", () => open(+link.dataset.entry)));
  if (matchMedia("(prefers-contrast: more)").matches) document.querySelectorAll(".patterns").forEach((choice) => { choice.checked = true; });
  const redraw = () => sections.filter((section) => !section.classList.contains("hidden")).forEach((section) => draw(section));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  window.addEventListener("beforeprint", () => { printing = true; redraw(); });
  window.addEventListener("afterprint", () => {
    printing = false; redraw();
    document.querySelectorAll(".entry:not(.hidden) .gantt").forEach((place) => Plotly.Plots.resize(place));
  });
  const asked = /^#entry-(\d+)$/.exec(location.hash);
  open(asked && +asked[1] < sections.length ? +asked[1] : report.open);
})();
