// Groups: their members, partitions and lag over time; resets the offsets of a group that has stopped.
import { get, post } from "./api.js";
import { charts } from "./charts.js";
import { ask, count, every, fill, h, later, table, toast, whole } from "./dom.js";

export function groups(main) {
  const search = h("input", { type: "search", placeholder: "Search groups ( / )", "aria-label": "Search groups", oninput: later(150, () => load(true)) });
  const list = h("div", { class: "panel" });
  const more = h("button", { hidden: true, onclick: () => { shown += 100; load(); } }, "More");
  main.append(h("h1", {}, "Groups"), h("div", { class: "bar" }, h("div", { class: "grow" }, search)), list, more);
  let shown = 100;
  let round = 0;

  async function load(top = false) {
    if (top) shown = 100;
    round += 1;
    const mine = round;
    try {
      const found = await get("/api/groups", { search: search.value, limit: shown });
      if (mine !== round) return;
      fill(list, table(["group", "state", ">members", ">lag", "topics"], found.groups.map((each) => [
        h("a", { href: `#/groups/${encodeURIComponent(each.group)}` }, each.group), each.state.toLowerCase(), count(each.members), count(each.lag),
        each.topics.slice(0, 4).join(", ") + (each.topics.length > 4 ? ` and ${each.topics.length - 4} more` : "")]),
        "no groups yet: a group is created when a consumer joins it or commits offsets"));
      more.hidden = found.groups.length >= found.total;
    } catch (error) { fill(list, h("p", { class: "error" }, error.message)); }
  }
  return { leave: every(4000, load) };
}

export function group(main, name) {
  const facts = h("p", { class: "soft" });
  const drawn = charts("group", name, [
    { figure: "lag", title: "Lag in records", unit: "count", id: "lag-chart" },
    { figure: "lag_s", title: "Lag in time", unit: "seconds", id: "lag-time-chart",
      empty: "Unknown: the oldest unread record was written before this console started to watch the topic." },
    { figure: "partitions", title: "Lag by partition", unit: "count", id: "partition-lag-chart" },
    { figure: "records", title: "Records read per second", unit: "rate", id: "read-chart" }]);
  const places = h("div", { class: "panel", id: "group-partitions" });
  const members = h("div", { class: "panel", id: "group-members" });
  const error = h("p", { class: "error", role: "alert" });
  main.append(h("h1", {}, name), facts, error,
    h("div", { class: "bar" }, h("button", { onclick: () => reset(name, load) }, "Reset offsets"), h("button", { class: "danger", onclick: remove }, "Delete group")),
    drawn.element, h("h2", {}, "Partitions"), places, h("h2", {}, "Members"), members);

  async function load() {
    try {
      const found = await get("/api/group", { name });
      error.textContent = "";
      facts.textContent = `${found.state.toLowerCase()}, ${found.members.length} members, lag ${count(found.lag)}, coordinator broker ${found.coordinator}${found.protocol ? `, ${found.protocol}` : ""}`;
      fill(places, table(["topic", ">partition", ">committed", ">end", ">lag", "client", "host"], found.partitions.map((each) => [
        h("a", { href: `#/topics/${encodeURIComponent(each.topic)}` }, each.topic), each.partition, count(each.committed), count(each.next_offset), count(each.lag), each.member, each.host]), "no committed offsets"));
      fill(members, table(["client", "host", "member", "partitions"], found.members.map((each) => [each.client_id, each.host, each.instance_id || each.member_id, each.assignment.join(", ")]), "no members: no consumer of this group is running"));
    } catch (failure) { error.textContent = failure.message; }
  }

  function remove() {
    ask(`Delete group ${name}`, [{ name: "typed", label: `Type ${name} to confirm` }], {
      button: "Delete for good", danger: true, note: "Its committed offsets are deleted.",
      send: async ({ typed }) => { await post("/api/change/delete-group", { group: name, typed }); toast(`group ${name} was deleted`); location.hash = "#/groups"; },
    });
  }
  const stop = every(3000, load);
  return { leave: () => { stop(); drawn.leave(); } };
}

function reset(name, load) {
  ask(`Reset ${name}`, [
    { name: "target", label: "To", options: [["earliest", "the oldest record"], ["latest", "the end"], ["offset", "an offset"], ["time", "a time (UTC)"], ["shift", "by a number of offsets"]] },
    { name: "value", label: "Offset, number, or time as 2026-01-31 12:00" },
    { name: "topics", label: "Only these topics, separated by spaces (empty: all with committed offsets)" },
  ], {
    button: "Show what would change", note: "Nothing is changed yet.",
    send: async (values) => {
      let value = 0;
      if (values.target === "time") {
        value = Date.parse(`${values.value.trim().replace(" ", "T")}Z`);
        if (Number.isNaN(value)) throw new Error("write the time as 2026-01-31 12:00");
      } else if (values.target === "offset" || values.target === "shift") value = whole(values.value, "the number");
      const plan = await post("/api/read/reset", { group: name, target: values.target, value, topics: values.topics.split(/\s+/).filter(Boolean) });
      confirm(plan, load);
    },
  });
}

function confirm(plan, load) {
  ask(`Set ${plan.group} to these offsets?`, [], {
    button: "Reset offsets", danger: true,
    send: async () => { await post("/api/change/reset", { group: plan.group, moves: plan.moves }); toast(`the offsets of ${plan.group} were set`); await load(); },
  });
  const form = document.querySelector("dialog:last-of-type form");
  form.querySelector("h2").after(h("div", { id: "reset-plan" }, table(["topic", ">partition", ">from", ">to", ">new lag"],
    plan.moves.map((each) => [each.topic, each.partition, count(each.from), count(each.to), count(each.lag)]))));
}
