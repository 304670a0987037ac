// Places the nodes of a directed graph in layers, from left to right. Pure: no DOM.
//
// 1. A node's layer is the longest way from a node without inputs. Edges that close a circle (a
//    pipeline may write to a topic that it reads) are left out for this step.
// 2. An edge over several layers gets a point in each layer between, so that no box covers it.
// 3. Within a layer, nodes are sorted by the mean position of their neighbours, in a few sweeps.

const BOX = { width: 190, height: 62, across: 46, down: 18, point: 14, edge: 12 };
const SWEEPS = 6;

export function layout(nodes, edges) {
  if (!nodes.length) return { boxes: new Map(), paths: [], width: 0, height: 0 };
  const ids = nodes.map((node) => node.id);
  const used = edges.filter((edge) => edge.from !== edge.to);
  const forward = withoutCircles(ids, used);
  const level = levels(ids, forward);
  const columns = [];
  const put = (id, at) => { (columns[at] ??= []).push(id); };
  for (const id of [...ids].sort()) put(id, level.get(id));
  const links = [];  // between neighbouring layers
  const ways = used.map((edge) => {
    const [first, last] = [level.get(edge.from), level.get(edge.to)];
    const way = [edge.from];
    for (let at = first + 1; at < last; at += 1) {
      const id = `${edge.from} ${edge.to} ${at}`;
      put(id, at);
      way.push(id);
    }
    way.push(edge.to);
    if (last > first) way.slice(1).forEach((id, at) => links.push([way[at], id]));
    return way;
  });
  sort(columns, links);
  const boxes = place(columns, new Set(ids));
  return {
    boxes: new Map(ids.map((id) => [id, boxes.get(id)])),
    paths: used.map((edge, at) => ({ edge, d: path(ways[at].map((id) => boxes.get(id))) })),
    width: columns.length * (BOX.width + BOX.across) - BOX.across + 2 * BOX.edge,
    height: Math.max(...[...boxes.values()].map((box) => box.y + box.height), 0) + BOX.edge,
  };
}

function withoutCircles(ids, edges) {
  const leaving = new Map(ids.map((id) => [id, []]));
  for (const edge of edges) leaving.get(edge.from).push(edge);
  const state = new Map();
  const kept = [];
  for (const start of ids) {
    if (state.has(start)) continue;
    const stack = [[start, 0]];
    state.set(start, "open");
    while (stack.length) {
      const top = stack[stack.length - 1];
      const edge = leaving.get(top[0])[top[1]];
      top[1] += 1;
      if (!edge) { state.set(top[0], "done"); stack.pop(); continue; }
      if (state.get(edge.to) === "open") continue;
      kept.push(edge);
      if (!state.has(edge.to)) { state.set(edge.to, "open"); stack.push([edge.to, 0]); }
    }
  }
  return kept;
}

function levels(ids, edges) {
  const level = new Map(ids.map((id) => [id, 0]));
  for (let changed = true; changed;) {
    changed = false;
    for (const { from, to } of edges) {
      if (level.get(to) <= level.get(from)) { level.set(to, level.get(from) + 1); changed = true; }
    }
  }
  // What nothing writes to stands directly before what reads it.
  for (const id of ids) {
    const readers = edges.filter((edge) => edge.from === id).map((edge) => level.get(edge.to));
    if (readers.length && !edges.some((edge) => edge.to === id)) level.set(id, Math.min(...readers) - 1);
  }
  return level;
}

function sort(columns, links) {
  const before = new Map();
  const after = new Map();
  for (const [from, to] of links) {
    if (!after.has(from)) after.set(from, []);
    if (!before.has(to)) before.set(to, []);
    after.get(from).push(to);
    before.get(to).push(from);
  }
  for (let sweep = 0; sweep < SWEEPS; sweep += 1) {
    const down = sweep % 2 === 0;
    const order = columns.map((_, at) => (down ? at : columns.length - 1 - at));
    for (const at of order) {
      const neighbours = columns[at + (down ? -1 : 1)];
      if (!neighbours) continue;
      const rank = new Map(neighbours.map((id, number) => [id, number / neighbours.length]));
      const near = down ? before : after;
      const mean = new Map(columns[at].map((id, number) => {
        const found = (near.get(id) || []).map((each) => rank.get(each)).filter((each) => each !== undefined);
        return [id, found.length ? found.reduce((one, other) => one + other, 0) / found.length : number / columns[at].length];
      }));
      columns[at].sort((one, other) => mean.get(one) - mean.get(other));
    }
  }
}

function place(columns, real) {
  const heights = columns.map((column) => column.reduce((sum, id) => sum + (real.has(id) ? BOX.height : BOX.point) + BOX.down, -BOX.down));
  const tallest = Math.max(...heights, 0);
  const boxes = new Map();
  columns.forEach((column, at) => {
    let y = BOX.edge + (tallest - heights[at]) / 2;
    for (const id of column) {
      const height = real.has(id) ? BOX.height : BOX.point;
      boxes.set(id, { x: BOX.edge + at * (BOX.width + BOX.across), y, width: BOX.width, height });
      y += height + BOX.down;
    }
  });
  return boxes;
}

function path(stops) {
  const middle = (box) => box.y + box.height / 2;
  let d = "";
  stops.slice(1).forEach((box, at) => {
    const last = stops[at];
    const [x1, y1, x2, y2] = [last.x + last.width, middle(last), box.x, middle(box)];
    if (!at) d += `M${x1} ${y1}`;
    if (x2 > x1) {
      const bend = (x1 + x2) / 2;
      d += ` C${bend} ${y1} ${bend} ${y2} ${x2} ${y2}`;
      if (at < stops.length - 2) d += ` L${x2 + box.width} ${y2}`;
    } else {
      // Back to an earlier layer: below both boxes.
      const low = Math.max(last.y + last.height, box.y + box.height) + BOX.down / 2;
      d += ` C${x1 + 40} ${y1} ${x1 + 40} ${low} ${x1 - 20} ${low} L${x2 + 20} ${low} C${x2 - 40} ${low} ${x2 - 40} ${y2} ${x2} ${y2}`;
    }
  });
  return d;
}
