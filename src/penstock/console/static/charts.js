// Charts of figures over time, drawn by uPlot (a script of index.html). Each page has one choice of
// the time range for all of its charts. They are hovered and zoomed together.
import { get } from "./api.js";
import { count, fill, h, rate, size } from "./dom.js";

const RANGES = [[300, "5 min"], [900, "15 min"], [3600, "1 h"], [21600, "6 h"]];
const HEIGHT = 190;
const SELECTED_MIN = 4;
const POWERS = Array.from({ length: 56 }, (_, power) => 2 ** power);

const WHOLES = Array.from({ length: 15 }, (_, power) => [1, 2, 5].map((number) => number * 10 ** power)).flat();

const UNITS = {
  count: { show: (number) => count(Math.round(number * 10) / 10), incrs: WHOLES },
  rate: { show: rate },
  bytes: { show: size, incrs: POWERS },
  byteRate: { show: (number) => `${size(number)}/s`, incrs: POWERS },
  seconds: { show: duration, incrs: [0.1, 0.5, 1, 5, 10, 30, 60, 300, 600, 1800, 3600, 7200, 21600, 86400] },
  ms: { show: (number) => (number >= 1000 ? `${(number / 1000).toFixed(1)} s` : `${number >= 10 ? Math.round(number) : Math.round(number * 10) / 10} ms`) },
};

function duration(seconds) {
  if (seconds < 60) return `${Math.round(seconds * 10) / 10} s`;
  if (seconds < 3600) return `${Math.round(seconds / 6) / 10} min`;
  return `${Math.round(seconds / 360) / 10} h`;
}

function range() {
  const kept = Number(localStorage.getItem("range"));
  return RANGES.some(([seconds]) => seconds === kept) ? kept : RANGES[0][0];
}

function variable(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }

function clock(seconds, step = 1) {
  const parts = { hour: "2-digit", minute: "2-digit", ...(step < 60 ? { second: "2-digit" } : {}) };
  return new Date(seconds * 1000).toLocaleTimeString(undefined, parts);
}

function numbers(values) { return values.filter((value) => value !== null); }

// `drawn` is [{ figure, title, unit, id, empty }, ...], where `empty` is what to say without data; `label` returns the text for a line. Call `leave`
// when the page is left.
export function charts(kind, name, drawn, label = (line) => line) {
  const page = { zoom: null, times: [0], hovered: null, plots: [] };
  const buttons = RANGES.map(([seconds, text]) => h("button", { type: "button", class: "small", onclick: () => choose(seconds) }, text));
  const whole = h("button", { type: "button", class: "small", hidden: true, onclick: () => zoom(null) }, "Whole range");
  const note = h("span", { class: "soft", role: "status" });
  const grid = h("div", { class: "charts" });
  const element = h("section", { "aria-label": "Charts" },
    h("div", { class: "bar ranges", role: "group", "aria-label": "Time range" }, buttons, whole, note), grid);
  page.plots = drawn.map((each) => chart(page, each, label, { hover, zoom }));
  grid.append(...page.plots.map((each) => each.element));
  let timer = 0;
  let gone = false;
  let round = 0;

  function mark() {
    buttons.forEach((button, at) => button.setAttribute("aria-pressed", String(RANGES[at][0] === range())));
    whole.hidden = page.zoom === null;
  }

  function choose(seconds) {
    localStorage.setItem("range", String(seconds));
    page.zoom = null;
    mark();
    load();
  }

  function zoom(view) {
    page.zoom = view;
    mark();
    for (const each of page.plots) each.draw();
  }

  function hover(index) {
    page.hovered = index;
    for (const each of page.plots) each.tell();
  }

  async function load() {
    clearTimeout(timer);
    round += 1;
    const mine = round;
    const seconds = range();
    try {
      if (!document.hidden) {
        const found = await get("/api/history", { kind, name, range: seconds });
        if (gone || mine !== round) return;
        page.times = Array.from({ length: found.steps }, (_, at) => (found.from_ms + at * found.step_ms) / 1000);
        page.last = found.now_ms / 1000;
        page.range = RANGES.find(([each]) => each === seconds)[1];
        note.textContent = found.full ? "The console keeps the history of at most 1,000 lines and has reached that limit, so some charts may stay empty." : "";
        for (const each of page.plots) each.take(found.figures[each.figure]);
      }
    } catch (error) { note.textContent = error.message; }
    if (!gone && mine === round) timer = setTimeout(load, seconds > 900 ? 10000 : 2000);
  }

  const repaint = () => { for (const each of page.plots) each.repaint(); };
  const themes = new MutationObserver(repaint);
  themes.observe(document.documentElement, { attributeFilter: ["data-theme"] });
  const system = matchMedia("(prefers-color-scheme: dark)");
  system.addEventListener("change", repaint);
  const sizes = new ResizeObserver(() => { for (const each of page.plots) each.resize(); });
  sizes.observe(grid);
  mark();
  load();
  return {
    element,
    leave: () => {
      gone = true;
      clearTimeout(timer);
      themes.disconnect();
      system.removeEventListener("change", repaint);
      sizes.disconnect();
      for (const each of page.plots) each.leave();
    },
  };
}

function chart(page, { figure, title, unit, id, empty = "No data in this time range yet." }, label, on) {
  const { show, incrs } = UNITS[unit];
  const holder = h("div", { class: "plot", role: "img" });
  const legend = h("div", { class: "legend" });
  const element = h("figure", { class: "panel", id }, h("figcaption", {}, title), holder, legend);
  let lines = {};
  let total = 0;
  let plot = null;
  let values = [];
  let labels = "";
  const moment = h("span", { class: "soft" });

  function take(found) {
    const before = labels;
    lines = found ? found.lines : {};
    total = found ? found.of : 0;
    holder.setAttribute("aria-label", described());
    const names = Object.keys(lines);
    labels = JSON.stringify(names.map((line) => [line, label(line)]));
    if (!names.length) {
      leave();
      fill(holder, h("p", { class: "soft" }, empty));
      fill(legend);
    } else if (!plot || labels !== before) {
      leave();
      fill(holder);
      plot = new uPlot(options(names), data(), holder);
      values = names.map(() => h("b", {}));
      fill(legend, moment, names.map((line, at) => entry(line, at)),
        total > names.length ? h("span", { class: "soft" }, `the ${names.length} largest of ${count(total)}`) : null);
      tell();
    } else {
      draw();
      tell();
    }
  }

  function data() { return [page.times, ...Object.values(lines)]; }

  function draw() { if (plot) plot.setData(data()); }

  // The text alternative of the picture.
  function described() {
    const told = Object.entries(lines).map(([line, found]) => {
      const known = numbers(found);
      const least = known.reduce((one, other) => Math.min(one, other));
      const most = known.reduce((one, other) => Math.max(one, other));
      return `${label(line)}: last ${show(known[known.length - 1])}, between ${show(least)} and ${show(most)}`;
    });
    return `${title}, last ${page.range}. ${told.length ? told.join("; ") : "No data"}`;
  }

  // The values under the pointer, or the last ones.
  function tell() {
    if (!plot) return;
    const at = page.hovered;
    moment.textContent = at === null || page.times[at] === undefined ? "now" : clock(page.times[at]);
    Object.values(lines).forEach((found, number) => {
      const value = at === null ? numbers(found.slice(-20)).pop() ?? null : found[at] ?? null;
      values[number].textContent = value === null ? "–" : show(value);
    });
  }

  function entry(line, at) {
    const swatch = h("span", { class: `swatch c${at}` });
    const button = h("button", { type: "button", class: "line", "aria-pressed": "true", title: "Show or hide this line",
      onclick: () => {
        const shown = button.getAttribute("aria-pressed") !== "true";
        button.setAttribute("aria-pressed", String(shown));
        plot.setSeries(at + 1, { show: shown });
      } }, swatch, label(line), " ", values[at]);
    return button;
  }

  function options(names) {
    const axis = { stroke: () => variable("--soft"), font: "12px system-ui, sans-serif", ticks: { stroke: () => variable("--line"), width: 1 }, grid: { stroke: () => variable("--line"), width: 1 } };
    return {
      width: holder.clientWidth || 320, height: HEIGHT, legend: { show: false }, padding: [10, 28, 0, 0],
      scales: {
        x: { time: true, range: () => page.zoom ?? [page.last - range(), page.last] },
        y: { range: (_, least, most) => [0, most > 0 ? most * 1.05 : 1] },
      },
      axes: [
        { ...axis, space: 72, size: 30, values: (_, splits, at, space, step) => splits.map((each) => clock(each, step)) },
        { ...axis, size: 78, ...(incrs ? { incrs } : {}), values: (_, splits) => splits.map((each) => show(each).replace(".0 ", " ")) },
      ],
      series: [{}, ...names.map((line, at) => ({
        label: line, stroke: () => variable(`--c${at}`), width: 1.7, spanGaps: false,
        points: { show: false, size: 5, fill: () => variable(`--c${at}`), filter: alone },
      }))],
      cursor: {
        y: false, points: { size: 7 }, drag: { x: true, y: false, setScale: false },
        sync: { key: "charts", setSeries: false, filters: { pub: passing, sub: passing } },
        bind: { dblclick: () => () => { on.zoom(null); return null; } },
      },
      hooks: {
        setCursor: [(drawn) => { if (drawn.cursor.event) on.hover(drawn.cursor.left >= 0 ? drawn.cursor.idx ?? null : null); }],
        setSelect: [(drawn) => {
          const { left, width } = drawn.select;
          for (const each of page.plots) each.unselect();
          if (width >= SELECTED_MIN) on.zoom([drawn.posToVal(left, "x"), drawn.posToVal(left + width, "x")]);
        }],
      },
    };
  }

  function leave() { if (plot) { plot.destroy(); plot = null; } }

  return {
    figure, element, take, draw, tell, leave,
    unselect: () => { if (plot) plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false); },
    repaint: () => { if (plot) plot.redraw(); },
    resize: () => { if (plot && holder.clientWidth) plot.setSize({ width: holder.clientWidth, height: HEIGHT }); },
  };
}

function passing(type) { return type === "mousemove" || type === "mouseleave"; }

// A value between two gaps has no line, so it is drawn as a point.
function alone(plot, at) {
  const values = plot.data[at];
  const found = [];
  values.forEach((value, index) => {
    if (value !== null && (values[index - 1] ?? null) === null && (values[index + 1] ?? null) === null) found.push(index);
  });
  return found.length ? found : null;
}
