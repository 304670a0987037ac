// The graph of a pipeline: topics, flows, tables and sinks, with live figures. Nodes can be reached
// with the Tab key. A topic is a link to its page; any other node shows its details below the graph.
import { post } from "./api.js";
import { count, fill, h, rate, size, table } from "./dom.js";
import { layout } from "./layout.js";

const SVG = "http://www.w3.org/2000/svg";
const CHARACTERS = 21;
// The kinds of nodes that have rows, and whose rows these are. A topic has its own page.
const WITH_ROWS = { table: "at most 50 rows of its newest file", flow: "at most 50 rows of what it writes", sink: "at most 50 of the newest records of its topic" };
const WITHOUT_ROWS = {
  view: "A view has no rows of its own: look at the tables that are made from it.",
  pattern: "This stands for all topics that match: look at one of them.",
  source: "Rows of this source are not shown: look at the tables that are made from it.",
};

function s(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined) element.setAttribute(name, String(value));
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

function short(text) { return text.length > CHARACTERS ? `${text.slice(0, CHARACTERS - 1)}…` : text; }

export function seconds(number) {
  if (number < 120) return `${Math.round(number * 10) / 10} s`;
  return number < 7200 ? `${Math.round(number / 60)} min` : `${Math.round(number / 3600)} h`;
}

// What is written on a node under its name.
function figures(node, flow) {
  if (node.kind === "topic") return node.records_per_s === null ? "topic" : `topic · ${rate(node.records_per_s)} written`;
  const parts = [node.format ? `${node.kind} · ${node.format}` : node.kind];
  if (flow && flow.rows_per_s !== null) parts.push(rate(flow.rows_per_s));
  if (flow && flow.lag !== null) parts.push(`lag ${count(flow.lag)}`);
  return parts.join(" · ");
}

export function graph(name) {
  const picture = h("div", { class: "graph scroll", id: "graph" });
  const details = h("div", { id: "node" });
  const rows = h("div", { id: "rows" });
  const element = h("div", {}, picture, details, rows);
  let drawn = "";
  let found = { nodes: [], edges: [] };
  let flows = new Map();
  let chosen = null;
  let shown = new Map();

  function draw() {
    shown = new Map();
    if (!found.nodes.length) {
      fill(picture, h("p", { class: "soft" }, "The graph is shown after the pipeline's first round has been planned."));
      return;
    }
    const { boxes, paths, width, height } = layout(found.nodes, found.edges);
    const lines = paths.map(({ edge, d }) => s("path", { d, class: "edge", "marker-end": "url(#arrow)" },
      s("title", {}, document.createTextNode(edge.schema || `${edge.from} → ${edge.to}`))));
    // In the order of the layers, from top to bottom: the order of the Tab key.
    const order = [...found.nodes].sort((one, other) => boxes.get(one.id).x - boxes.get(other.id).x || boxes.get(one.id).y - boxes.get(other.id).y);
    fill(picture, s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": `Graph of ${name}: ${found.nodes.length} nodes` },
      s("defs", {}, s("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 8, refY: 4, markerWidth: 8, markerHeight: 8, orient: "auto" }, s("path", { d: "M0 0 L8 4 L0 8 z" }))),
      ...lines, ...order.map((node) => box(node, boxes.get(node.id)))));
  }

  function box(node, at) {
    const title = s("text", { x: 12, y: 26, class: "name" }, document.createTextNode(short(node.name)));
    const figure = s("text", { x: 12, y: 46, class: "figure" });
    const parts = [s("rect", { width: at.width, height: at.height, rx: node.kind === "topic" ? 22 : 6 }), title, figure];
    const shape = { class: `node ${node.kind}`, transform: `translate(${at.x} ${at.y})` };
    const key = (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(node.id); } };
    const drawnBox = node.kind === "topic"
      ? s("a", { ...shape, href: `#/topics/${encodeURIComponent(node.name)}` }, ...parts)
      : s("g", { ...shape, tabindex: 0, role: "button", "aria-controls": "node", onclick: () => choose(node.id), onkeydown: key }, ...parts);
    shown.set(node.id, { box: drawnBox, figure });
    return drawnBox;
  }

  function choose(id) {
    chosen = chosen === id ? null : id;
    const node = found.nodes.find((each) => each.id === chosen);
    fill(rows, node && WITH_ROWS[node.kind] ? preview(node) : null);
    tell();
  }

  // Puts the current figures on the nodes, without drawing them again: a node keeps the focus.
  function tell() {
    for (const node of found.nodes) {
      const parts = shown.get(node.id);
      const flow = flows.get(node.flow);
      const bad = flow && (flow.error || flow.status === "FAILED");
      const text = bad ? `${node.kind} · failed` : figures(node, flow);
      parts.figure.textContent = text;
      parts.box.classList.toggle("failed", Boolean(bad));
      parts.box.classList.toggle("chosen", node.id === chosen);
      parts.box.setAttribute("aria-label", `${node.name}: ${text}${bad && flow.error ? `: ${flow.error}` : ""}`);
      if (node.kind !== "topic") parts.box.setAttribute("aria-expanded", String(node.id === chosen));
    }
    const node = found.nodes.find((each) => each.id === chosen);
    fill(details, node ? described(node) : null);
  }

  // Not part of the details, which are written again with every report.
  function preview(node) {
    const shown = h("div", { "aria-live": "polite" });
    const of = h("span", { class: "soft" }, WITH_ROWS[node.kind]);
    const button = h("button", { onclick: ask }, "Show rows");

    async function ask() {
      button.disabled = true;
      fill(shown, h("p", { class: "soft" }, "reading"));
      try {
        const answer = await post(`/api/read/preview/${encodeURIComponent(name)}`, { node: node.id });
        const titles = answer.columns.map(([column, type]) => `${column} ${type}`.trim());
        fill(shown, h("div", { class: "scroll" }, table(titles, answer.rows.map((row) => row.map((cell) => (cell === null ? h("span", { class: "soft" }, "NULL") : cell))), `The ${answer.of} has no rows.`)));
        of.textContent = `${answer.of}: at most 50 ${answer.of.startsWith("topic") ? "of the newest records" : "rows of its newest file"}`;
      } catch (error) { fill(shown, h("p", { class: "error" }, error.message)); }
      button.disabled = false;
      button.textContent = "Show rows again";
    }

    return h("section", { class: "panel", "aria-label": `Rows of ${node.name}` }, h("div", { class: "bar" }, button, of), shown);
  }

  function described(node) {
    const flow = flows.get(node.flow);
    const named = (id) => {
      const other = found.nodes.find((each) => each.id === id);
      return other.kind === "topic" ? h("a", { href: `#/topics/${encodeURIComponent(other.name)}` }, other.name) : other.name;
    };
    const edges = [...found.edges.filter((edge) => edge.to === node.id).map((edge) => ["reads", named(edge.from), edge.schema]),
      ...found.edges.filter((edge) => edge.from === node.id).map((edge) => ["to", named(edge.to), edge.schema])];
    return h("section", { class: "panel", "aria-label": `Details of ${node.name}` },
      h("h3", {}, `${node.kind} ${node.name}`),
      node.file ? h("p", { class: "soft" }, `defined in ${node.file}${node.line ? `, line ${node.line}` : ""}`) : null,
      flow && flow.error ? h("p", { class: "error" }, flow.error) : null,
      flow ? facts(flow) : null,
      table(["", "", "columns"], edges.map(([way, other, schema]) => [way, other, h("code", { class: "wrapped" }, schema || "–")]), "This node is connected to no other."),
      WITHOUT_ROWS[node.kind] ? h("p", { class: "soft" }, WITHOUT_ROWS[node.kind]) : null);
  }

  return {
    element,
    show: (graphFound, flowsFound) => {
      found = graphFound;
      flows = new Map(flowsFound.map((flow) => [flow.name, flow]));
      const structure = JSON.stringify([found.nodes.map((node) => [node.id, node.kind]), found.edges]);
      if (structure !== drawn) { drawn = structure; draw(); }
      tell();
    },
  };
}

export function kept(flow) {
  if (flow.state_rows === null) return null;
  return `${count(flow.state_rows)} rows${flow.state_bytes ? `, ${size(flow.state_bytes)}` : ""}`;
}

// How uneven the partitions of its topics and Spark's tasks are; nothing if they are even.
export function skew(flow) {
  const shown = (found) => (found === null || found < 2 ? null : `${Math.round(found * 10) / 10} ×`);
  const tasks = shown(flow.task_skew);
  return [shown(flow.skew), tasks && `tasks ${tasks}`].filter(Boolean).join(", ") || null;
}

function facts(flow) {
  const told = [["status", flow.status.toLowerCase()], ["rows", flow.streaming ? count(flow.rows) : null],
    ["lag", flow.lag === null ? null : `${count(flow.lag)} records${flow.lag_s === null ? "" : `, ${seconds(flow.lag_s)}`}`],
    ["last batch", flow.batch === null ? null : `${count(flow.batch_rows)} rows in ${seconds((flow.batch_ms || 0) / 1000)}`],
    ["watermark", flow.watermark || null], ["state", kept(flow)], ["skew", skew(flow)]];
  return h("p", {}, told.filter(([, value]) => value).map(([label, value]) => `${label} ${value}`).join(", "));
}
