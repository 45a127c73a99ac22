"use strict";
// The page of a sweep: a chart of the rows over one key, and the precomputed schedule of the chosen row.
(() => {
  const data = JSON.parse(document.getElementById("report-data").textContent), { rows, keys, names, kinds, timelines } = data;
  const palette = ["#4c78a8", "#f58518", "#54a24b", "#b279a2", "#72b7b2", "#9d755d", "#d1495b", "#a5a84e"];
  const colours = { kernel: "#4c78a8", load: "#8797ad", copy: "#d1495b", host_read: "#e0b93b" };
  const words = { kernel: "kernels", load: "loads from host memory", copy: "copies between devices", host_read: "reads of host memory" };
  const measures = {
    latency: ["latency (ms)", (row) => row.latency * 1e3, (row) => row.lower_bound * 1e3],
    throughput: ["inferences a second", (row) => row.throughput, (row) => row.most_throughput],
    cost: ["price of 1,000 inferences", (row) => row.cost, (row) => row.least_cost],
  };
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const escaped = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const find = (selector) => document.querySelector(selector);
  const named = Object.keys(keys), varied = named.filter((key) => keys[key].length > 1), some = varied.length ? varied : named;
  const shown = (key, value) => (key === "bandwidth" ? `${value}x` : String(value));
  const text = (row) => named.map((key) => `${key} ${shown(key, row.values[key])}`).join(", ");
  const priced = rows.some((row) => row.cost !== null);
  let axis = some.includes("gpus") ? "gpus" : some[0], measure = "latency", target = data.target;
  let chosen = Math.max(0, rows.findIndex((row) => row.latency !== null));

  const rowAt = (values) => rows.findIndex((row) => named.every((key) => row.values[key] === values[key]));

  function axes() {
    const line = { gridcolor: css("--line"), zerolinecolor: css("--line"), linecolor: css("--line"), automargin: true };
    return [line, {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: css("--band"), hovermode: "closest", margin: { l: 60, r: 14, t: 14, b: 90 },
      font: { color: css("--ink"), family: "system-ui, 'Segoe UI', Roboto, 'Liberation Sans', sans-serif", size: 13 },
      hoverlabel: { bgcolor: css("--card"), bordercolor: css("--wire"), font: { color: css("--ink") } },
    }];
  }
  const config = { responsive: true, displaylogo: false, displayModeBar: false };

  // One line for each value of one other key; all further keys are as in the chosen variant.
  function chart() {
    const groups = new Map(), [lines, ...fixed] = some.filter((each) => each !== axis);
    rows.forEach((row, n) => {
      if (row.latency === null || fixed.some((each) => row.values[each] !== rows[chosen].values[each])) return;
      const key = lines ? `${lines} ${shown(lines, row.values[lines])}` : measures[measure][0];
      if (!groups.has(key)) groups.set(key, []);
      groups.get(key).push(n);
    });
    const [title, of, limit] = measures[measure], traces = [];
    [...groups].forEach(([name, members], g) => {
      const x = members.map((n) => shown(axis, rows[n].values[axis])), colour = palette[g % palette.length];
      const hover = members.map((n) => `<b>${escaped(text(rows[n]))}</b><br>${title}: ${of(rows[n]).toPrecision(3)}<br>bound: ${limit(rows[n]).toPrecision(3)}`);
      traces.push({ x, y: members.map((n) => of(rows[n])), customdata: members, name: escaped(name), legendgroup: name, mode: "lines+markers", hovertext: hover, hoverinfo: "text",
        line: { color: colour, width: 2 }, marker: { color: colour, size: members.map((n) => (n === chosen ? 14 : 7)), line: { color: css("--ink"), width: members.map((n) => (n === chosen ? 2 : 0)) } } });
      traces.push({ x, y: members.map((n) => limit(rows[n])), customdata: members, name: `${escaped(name)}: bound`, legendgroup: name, showlegend: false, mode: "lines", hovertext: hover, hoverinfo: "text", line: { color: colour, width: 1.5, dash: "dot" } });
    });
    const [line, base] = axes(), many = groups.size > 1;
    const shapes = measure === "latency" && target ? [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: target * 1e3, y1: target * 1e3, line: { color: css("--mark"), width: 1.5, dash: "dash" } }] : [];
    Plotly.react(find(".chart"), traces, { ...base, height: 400 + (many ? 20 * Math.ceil(groups.size / 3) : 0), shapes, showlegend: many, legend: { orientation: "h", yref: "container", y: 0, yanchor: "bottom" },
      xaxis: { ...line, type: "category", title: { text: axis === "gpus" ? "number of GPUs" : axis }, categoryarray: keys[axis].map((value) => shown(axis, value)), categoryorder: "array" },
      yaxis: { ...line, title: { text: title }, rangemode: "tozero" } }, config);
    find(".chart").removeAllListeners?.("plotly_click");
    find(".chart").on("plotly_click", (event) => choose(event.points[0].customdata));
  }

  const longest = Math.max(...rows.map((row) => row.latency ?? 0)) * 1e9;
  function schedule() {
    const row = rows[chosen], entry = timelines[chosen], place = find(".gantt");
    find(".chosen-name").textContent = row.latency === null ? `${text(row)}: ${row.error}`
      : `${text(row)}: ${(row.latency * 1e3).toPrecision(3)} ms, bound ${(row.lower_bound * 1e3).toPrecision(3)} ms, ${row.used} of ${row.devices} devices used`;
    if (!entry) {
      Plotly.purge(place);
      place.textContent = row.latency === null ? "There is no schedule." : "This page holds no timelines: there would be too many events. Schedule this variant with `tvm-sched schedule --report`.";
      return;
    }
    const [line, base] = axes();
    const bars = kinds.map((kind, k) => {
      const own = entry.kind.flatMap((each, n) => (each === k ? [n] : []));
      return { type: "bar", orientation: "h", name: words[kind], x: own.map((n) => entry.time[n] / 1e6), base: own.map((n) => entry.start[n] / 1e6), y: own.map((n) => entry.lane[n]), width: 0.8,
        hovertext: own.map((n) => `${escaped(names[entry.name[n]])}<br>${escaped(entry.lanes[entry.lane[n]])}<br>${(entry.time[n] / 1e6).toPrecision(3)} ms`), hoverinfo: "text", marker: { color: colours[kind] } };
    }).filter((trace) => trace.x.length);
    Plotly.react(place, bars, { ...base, height: 104 + 26 * entry.lanes.length, barmode: "overlay", bargap: 0, legend: { orientation: "h", yref: "container", y: 0, yanchor: "bottom" }, showlegend: true,
      shapes: [{ type: "line", yref: "paper", y0: 0, y1: 1, x0: row.lower_bound * 1e3, x1: row.lower_bound * 1e3, line: { color: css("--bound"), dash: "dash", width: 1.5 } }],
      xaxis: { ...line, range: [0, longest / 1e6 * 1.01], title: { text: "ms" } }, yaxis: { ...line, tickvals: entry.lanes.map((_, n) => n), ticktext: entry.lanes.map(escaped), range: [entry.lanes.length - 0.5, -0.5], fixedrange: true, showgrid: false } }, config);
  }

  function choose(n) {
    if (n < 0 || n === undefined) return;
    chosen = n;
    document.querySelectorAll(".variants tbody tr").forEach((row, r) => row.classList.toggle("on", r === n));
    document.querySelectorAll(".sliders input").forEach((input) => {
      const key = input.dataset.key;
      input.value = keys[key].indexOf(rows[n].values[key]);
      input.setAttribute("aria-valuetext", shown(key, rows[n].values[key]));
      input.nextElementSibling.textContent = shown(key, rows[n].values[key]);
    });
    chart(); schedule();
  }

  function judge() {
    const solved = rows.filter((row) => row.latency !== null), order = (row) => [row.price ?? 0, row.devices, row.latency];
    document.querySelectorAll(".variants tbody tr").forEach((row, r) => row.classList.toggle("meets", target !== null && rows[r].latency !== null && rows[r].latency <= target));
    if (target === null) { find(".live").textContent = "Give a target above the chart to see which variant is enough."; return; }
    const meets = solved.filter((row) => row.latency <= target).sort((a, b) => { const [p, q] = [order(a), order(b)], at = p.findIndex((value, n) => value !== q[n]); return at < 0 ? 0 : p[at] - q[at]; });
    const never = solved.filter((row) => row.lower_bound > target).length;
    find(".live").textContent = `${(target * 1e3).toPrecision(3)} ms: ${meets.length ? `the ${priced ? "cheapest" : "smallest"} variant that reaches it is ${text(meets[0])}` : "no variant reaches it"}; ${meets.length} of ${solved.length} reach it, ${never} cannot by any schedule of these kernels, ${solved.length - meets.length - never} are open.`;
  }

  function select(label, values, value, change) {
    const made = document.createElement("label"), choice = document.createElement("select");
    values.forEach((each) => choice.add(new Option(each, each, false, each === value)));
    choice.addEventListener("change", () => change(choice.value));
    made.append(`${label} `, choice);
    return made;
  }

  const controls = find(".controls");
  controls.append(select("show", Object.keys(measures).filter((key) => key !== "cost" || priced), measure, (value) => { measure = value; chart(); }));
  if (some.length > 1) controls.append(select("over", some, axis, (value) => { axis = value; chart(); }));
  const aim = document.createElement("label"), number = document.createElement("input");
  Object.assign(number, { type: "number", min: "0", step: "any", className: "target", value: target === null ? "" : target * 1e3 });
  number.addEventListener("input", () => { target = number.value > 0 ? number.value / 1e3 : null; judge(); chart(); });
  aim.append("target latency in ms ", number);
  controls.append(aim);
  varied.forEach((key) => {
    const label = document.createElement("label"), input = document.createElement("input"), value = document.createElement("output");
    Object.assign(input, { type: "range", min: 0, max: keys[key].length - 1, step: 1 });
    input.dataset.key = key;
    input.addEventListener("input", () => {
      const values = { ...rows[chosen].values, [key]: keys[key][input.value] };
      choose(rowAt(values));
    });
    label.append(`${key} `, input, value);
    find(".sliders").append(label);
  });
  document.querySelectorAll(".variants tbody tr").forEach((row, n) => {
    row.addEventListener("click", () => choose(n));
    row.addEventListener("keydown", (event) => { if (event.key === "Enter") choose(n); });
  });
  const others = some.length > 2 ? " Keys that have no line are as in the chosen variant." : "";
  find(".note").textContent = `Dotted: no schedule of these kernels is below that bound (above it, for throughput).${others}`;
  judge();
  if (rows.length) choose(chosen);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => rows.length && choose(chosen));
})();
