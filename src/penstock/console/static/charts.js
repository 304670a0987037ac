// Lines over time, drawn as SVG from numbers.
import { h, count } from "./dom.js";

const SPACE = "http://www.w3.org/2000/svg";
const COLOURS = 8;

function shape(tag, attributes) {
  const element = document.createElementNS(SPACE, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  return element;
}

// `series` is {name: [[ms, number], ...]}; shows the largest few where there are many.
export function chart(series, label, shown = (number) => count(Math.round(number))) {
  const last = (points) => (points.length ? points[points.length - 1][1] : 0);
  const named = Object.entries(series).filter(([, points]) => points.length)
    .sort((one, other) => last(other[1]) - last(one[1])).slice(0, COLOURS);
  const all = named.flatMap(([, points]) => points);
  if (all.length < 2) return h("p", { class: "soft" }, "collecting data: the chart appears in a few seconds");
  const from = Math.min(...all.map((point) => point[0]));
  const until = Math.max(...all.map((point) => point[0]));
  const most = Math.max(1, ...all.map((point) => point[1]));
  const picture = shape("svg", { viewBox: "0 0 600 160", preserveAspectRatio: "none", class: "chart", role: "img" });
  const title = document.createElementNS(SPACE, "title");
  title.textContent = `${label}, at most ${shown(most)}`;
  picture.append(title);
  for (const y of [10, 80, 150]) picture.append(shape("line", { x1: 0, x2: 600, y1: y, y2: y }));
  named.forEach(([, points], at) => {
    const places = points.map(([ms, number]) =>
      `${(((ms - from) / Math.max(1, until - from)) * 600).toFixed(1)},${(150 - (number / most) * 140).toFixed(1)}`);
    picture.append(shape("polyline", { points: places.join(" "), class: `c${at}` }));
  });
  const legend = h("div", { class: "legend" },
    h("span", { class: "soft" }, `0 to ${shown(most)}, last ${Math.round((until - from) / 1000)} s`),
    named.map(([name, points], at) => h("span", { class: `c${at}` }, `${name}: ${shown(last(points))}`)));
  return h("div", {}, picture, legend);
}
