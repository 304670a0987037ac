// One topic: its messages, its partitions, its settings, and what can be done to it.
import { get, post } from "./api.js";
import { charts } from "./charts.js";
import { ask, count, every, fill, h, rate, size, table, toast, whole } from "./dom.js";
import { messages } from "./messages.js";

export function topic(main, name, tab = "messages") {
  const at = `#/topics/${encodeURIComponent(name)}`;
  const body = h("div", {});
  const facts = h("p", { class: "soft" });
  const link = (key, text) => h("a", { href: `${at}/${key}`, "aria-current": tab === key ? "page" : null }, text);
  main.append(h("h1", {}, name), facts,
    h("div", { class: "tabs" }, link("messages", "Messages"), link("partitions", "Partitions"), link("settings", "Settings"), link("charts", "Charts")), body);
  let leave = null;
  let gone = false;

  async function load() {
    const found = await get(`/api/topics/${encodeURIComponent(name)}`);
    if (gone) return;
    fill(facts, `${count(found.partitions)} partitions, ${found.replication_factor} replicas, ${size(found.size_bytes)} on disk, ${rate(found.records_per_s)} written`,
      found.groups.length ? [", read by ", found.groups.map((group, number) => [number ? ", " : "", h("a", { href: `#/groups/${encodeURIComponent(group)}` }, group)])] : null);
    if (tab === "partitions") partitions(body, found, load);
    else if (tab === "settings") settings(body, name, found);
    else if (tab === "charts") drawCharts();
    else if (!leave) leave = messages(body, found);
  }

  function drawCharts() {
    const drawn = charts("topic", name, [
      { figure: "records", title: "Records written per second", unit: "rate", id: "topic-records" },
      { figure: "bytes", title: "Bytes written per second, one replica", unit: "byteRate", id: "topic-bytes" },
      { figure: "size", title: "Size of one replica", unit: "bytes", id: "topic-size" }]);
    fill(body, drawn.element);
    leave = drawn.leave;
  }
  let report = (error) => fill(body, h("p", { class: "error" }, error.message));
  let loaded = false;
  const refresh = () => load().then(() => { loaded = true; report = () => {}; }).catch((error) => report(error));
  // The broker that is asked may not know a new topic yet, so a page that could not be shown is tried again.
  const stop = every(4000, () => (tab === "partitions" || !loaded ? refresh() : null));
  return { leave: () => { gone = true; stop(); if (leave) leave(); } };
}

function partitions(body, found, load) {
  fill(body, h("div", { class: "bar" }, h("button", { onclick: grow }, "Add partitions")),
    table([">partition", ">leader", "replicas", "in sync", ">first offset", ">next offset", ">records", ">size"],
      found.partition_rows.map((each) => [each.partition,
        each.leader < 0 ? h("span", { class: "bad" }, "none") : each.leader, each.replicas.join(", "),
        h("span", { class: each.in_sync.length < each.replicas.length ? "bad" : "" }, each.in_sync.join(", ")),
        count(each.first_offset), count(each.next_offset),
        each.next_offset === null ? "–" : count(each.next_offset - each.first_offset), size(each.size_bytes)])));

  function grow() {
    ask(`Add partitions to ${found.name}`, [{ name: "total", label: `Total number of partitions (now ${found.partitions})`, required: true, inputmode: "numeric" }], {
      button: "Add", note: "Partitions cannot be removed later, and new records of a key may go to a different partition than its older records.",
      send: async ({ total }) => {
        await post(`/api/change/partitions/${encodeURIComponent(found.name)}`, { total: whole(total, "partitions") });
        toast(`${found.name} has ${total} partitions`);
        await load();
      },
    });
  }
}

async function settings(body, name, found) {
  const path = encodeURIComponent(name);
  const search = h("input", { type: "search", placeholder: "Search settings", "aria-label": "Search settings", oninput: () => draw() });
  const list = h("div", {});
  fill(body, h("div", { class: "bar" }, h("div", { class: "grow" }, search),
    h("button", { class: "danger", onclick: remove }, "Delete topic")), list);
  let configs = [];

  function draw() {
    const wanted = configs.filter((each) => each.name.includes(search.value.trim().toLowerCase()));
    fill(list, table(["setting", "value", "from", ""], wanted.map((each) => [
      h("span", { title: each.documentation }, each.name), each.value ?? "(hidden)", each.is_default ? "default" : h("b", {}, "this topic"),
      each.read_only ? "" : h("span", { class: "small" }, h("button", { onclick: () => change(each), "aria-label": `Change ${each.name}` }, "Change"), " ",
        each.is_default ? null : h("button", { onclick: () => back(each), "aria-label": `Reset ${each.name}` }, "Reset"))]), "no setting matches"));
  }

  function change(each) {
    ask(each.name, [{ name: "value", label: "Value", value: each.value ?? "" }], {
      button: "Set", note: each.documentation,
      send: async ({ value }) => {
        configs = (await post(`/api/change/configs/${path}`, { set: { [each.name]: value } })).configs;
        draw();
      },
    });
  }

  async function back(each) {
    try {
      configs = (await post(`/api/change/configs/${path}`, { delete: [each.name] })).configs;
      draw();
    } catch (error) { toast(error.message, true); }
  }

  function remove() {
    ask(`Delete ${name}`, [{ name: "typed", label: `Type ${name} to confirm` }], {
      button: "Delete for good", danger: true,
      note: `All records of its ${count(found.partitions)} partitions will be lost. ${found.groups.length ? `These groups read it: ${found.groups.join(", ")}.` : ""}`,
      send: async ({ typed }) => {
        await post(`/api/change/delete/${path}`, { typed });
        toast(`topic ${name} was deleted`);
        location.hash = "#/topics";
      },
    });
  }

  try {
    configs = (await get(`/api/topics/${path}/configs`)).configs;
    draw();
  } catch (error) { fill(list, h("p", { class: "error" }, error.message)); }
}
