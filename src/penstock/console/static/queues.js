// Queues: share groups and their topics, over time; jobs that wait, without taking them; dead letters and
// their redrive. Buttons stay the same elements while figures change, so that no click is lost.
import { get, post } from "./api.js";
import { charts } from "./charts.js";
import { ask, content, count, every, fill, h, later, size, table, time, toast, whole } from "./dom.js";

const at = (topic, group) => `#/queues/${encodeURIComponent(topic)}/${encodeURIComponent(group)}`;
const jobs = (number) => `${count(number)} ${number === 1 ? "job" : "jobs"}`;

// How long the oldest job has waited.
function age(now, ms) {
  if (ms === null) return "–";
  const seconds = Math.max(0, Math.round((now - ms) / 1000));
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.floor(seconds / 3600)} h` : `${Math.floor(seconds / 86400)} d`;
}

function letters(each) {
  if (each.letters_topic === null) return h("span", { class: "soft" }, "not visible");
  if (!each.letters_topic) return "–";
  return h("span", { title: each.letters_topic }, each.letters === null ? "none yet" : count(each.letters));
}

export function queues(main) {
  const search = h("input", { type: "search", placeholder: "Search queues ( / )", "aria-label": "Search queues", oninput: later(150, () => load(true)) });
  const list = h("div", { class: "panel", id: "queues" });
  const note = h("p", { class: "soft" });
  const more = h("button", { hidden: true, onclick: () => { shown += 100; load(); } }, "More");
  main.append(h("h1", {}, "Queues"), h("div", { class: "bar" }, h("div", { class: "grow" }, search)), list, note, more);
  let shown = 100;
  let round = 0;

  async function load(top = false) {
    if (top) shown = 100;
    round += 1;
    const mine = round;
    try {
      const found = await get("/api/queues", { search: search.value, limit: shown });
      if (mine !== round) return;
      fill(list, table(["topic", "share group", "state", ">members", ">not done", ">in flight", ">oldest", ">redelivered", ">dead letters"], found.queues.map((each) => [
        h("a", { href: at(each.topic, each.group) }, each.topic), each.group, each.state.toLowerCase(), count(each.members), count(each.depth), count(each.in_flight),
        age(found.now_ms, each.oldest_ms), count(each.redelivered), letters(each)]),
        "no queues yet: a topic becomes a queue when a share group reads it, for example with penstock queue take"));
      note.textContent = found.unlisted ? `${count(found.unlisted)} more share groups are not shown: the console follows the first 200.` : "";
      more.hidden = found.queues.length >= found.total;
    } catch (error) { fill(list, h("p", { class: "error" }, error.message)); }
  }
  return { leave: every(3000, load) };
}

export function queue(main, topic, group) {
  const facts = h("p", { class: "soft", id: "facts" });
  const error = h("p", { class: "error", role: "alert" });
  const drawn = charts("queue", `${topic}/${group}`, [
    { figure: "depth", title: "Jobs that are not done", unit: "count", id: "depth-chart" },
    { figure: "oldest_s", title: "Age of the oldest job", unit: "seconds", id: "oldest-chart" },
    { figure: "rates", title: "Jobs per second", unit: "rate", id: "rates-chart" },
    { figure: "redelivered", title: "Jobs that were delivered before", unit: "count", id: "redelivered-chart",
      empty: "Unknown while no worker is connected." },
    { figure: "members", title: "Members", unit: "count", id: "members-chart" },
    { figure: "letters", title: "Dead letters", unit: "count", id: "letters-chart", empty: "The group has no dead-letter topic, or you may not read it." }]);
  const places = h("div", { class: "panel", id: "queue-partitions" });
  const members = h("div", { class: "panel", id: "queue-members" });
  const waiting = h("div", { class: "panel", id: "queue-jobs" }, h("p", { class: "soft" }, "Peek shows the first jobs that are not done, without taking them."));
  const dead = h("p", { id: "queue-letters" });
  const peek = h("button", { onclick: look }, "Peek");
  const back = h("button", { hidden: true, onclick: redrive }, "Redrive dead letters");
  main.append(h("h1", {}, topic), facts, error,
    h("div", { class: "bar" }, h("a", { href: `#/topics/${encodeURIComponent(topic)}` }, "Topic and messages")),
    drawn.element, h("h2", {}, "Jobs"), h("div", { class: "bar" }, peek), waiting, h("h2", {}, "Dead letters"), dead, h("div", { class: "bar" }, back),
    h("h2", {}, "Partitions"), places, h("h2", {}, "Members"), members);

  async function load() {
    try {
      const found = await get("/api/queue", { topic, group });
      error.textContent = "";
      facts.textContent = `share group ${group}, ${found.state.toLowerCase()}: ${jobs(found.depth)} not done, ${found.in_flight === null ? "an unknown number" : count(found.in_flight)} in flight, `
        + `${count(found.redelivered)} delivered before, oldest ${age(found.now_ms, found.oldest_ms)}; ${count(found.members)} of ${count(found.group_members.length)} members; coordinator broker ${found.coordinator}`;
      back.hidden = !found.letters_topic;
      fill(dead, told(found));
      fill(places, table([">partition", ">first not done", ">end", ">not done", ">in flight", ">oldest", ">delivered before"], found.partitions.map((each) => [
        each.partition, count(each.start_offset), count(each.end_offset), count(each.depth), count(each.in_flight), age(found.now_ms, each.oldest_ms), count(each.redelivered)])));
      fill(members, table(["client", "host", "member", "partitions of this topic"], found.group_members.map((each) => [
        each.client_id, each.host, each.member_id, each.partitions.join(", ") || "–"]), "no members: no worker of this group is running"));
    } catch (failure) { error.textContent = failure.message; }
  }

  function told(found) {
    if (found.letters_topic === null) return "You may not see the settings of the group.";
    if (!found.letters_topic) return "The group has no dead-letter topic: jobs that are given up are lost. To keep them, set errors.deadletterqueue.topic.name for the group.";
    const link = h("a", { href: `#/topics/${encodeURIComponent(found.letters_topic)}` }, found.letters_topic);
    return found.letters === null ? ["Dead letters go to ", link, ", which does not exist yet, or which you may not read."]
      : ["At most ", count(found.letters), " in ", link, " have not been sent back yet."];
  }

  async function look() {
    peek.disabled = true;
    try {
      const found = await post("/api/read/jobs", { topic, group, limit: 20 });
      fill(waiting, found.jobs.length ? [h("p", { class: "soft" }, `The first ${jobs(found.jobs.length)} of ${count(found.depth)} that are not done, read from the log. Some may be in flight, and later ones may already be done.`), found.jobs.map(job)]
        : h("p", { class: "soft" }, "All jobs are done."));
    } catch (failure) { fill(waiting, h("p", { class: "error" }, failure.message)); }
    peek.disabled = false;
  }

  function redrive() {
    const body = (values) => ({ group, to: values.to, error: values.error, limit: values.limit.trim() ? whole(values.limit, "the limit") : null });
    ask(`Redrive the dead letters of ${group}`, [
      { name: "error", label: "Only those whose error contains this text" },
      { name: "to", label: "To another topic (empty: where they came from)" },
      { name: "limit", label: "At most (empty: all)", value: "1000", inputmode: "numeric" }], {
      note: "Correct the cause first, or they will come back. Each is sent back once, even if the redrive is interrupted and started again.",
      lookButton: "Show what would be sent", button: "Send them back", danger: true,
      look: async (values) => {
        const plan = await post("/api/read/redrive", body(values));
        return { content: planned(plan), refused: Object.keys(plan.sent).length ? "" : "there is nothing to send back" };
      },
      send: async (values) => {
        await post("/api/change/redrive", body(values));
        toast("the redrive has started");
      },
    });
  }

  const stop = every(3000, load);
  return { leave: () => { stop(); drawn.leave(); } };
}

function job(record) {
  return h("article", { class: "message", "data-offset": record.offset },
    h("div", { class: "meta" }, h("span", {}, `partition ${record.partition}`), h("b", {}, `offset ${count(record.offset)}`), h("span", {}, time(record.timestamp)),
      h("span", { class: "tag" }, record.value.kind), h("span", {}, size(record.value.bytes))),
    record.key.kind === "null" ? null : h("div", { class: "key" }, h("span", { class: "soft" }, "key"), h("pre", {}, content(record.key))),
    h("pre", { class: "value" }, content(record.value)),
    record.headers.length ? h("div", { class: "meta" }, record.headers.map(([name, header]) => h("span", { class: "tag" }, `${name}: ${content(header)}`))) : null);
}

function planned(plan) {
  const lines = Object.entries(plan.sent).map(([to, number]) => `${jobs(number)} to ${to}`);
  if (plan.left) lines.push(`Left in ${plan.topic}, with other errors: ${count(plan.left)}`);
  if (plan.unknown) lines.push(`Left in ${plan.topic}, because they do not say which topic they came from: ${count(plan.unknown)}`);
  if (plan.without_copy) lines.push(`Left in ${plan.topic}, because the group does not copy records to its dead letters: ${count(plan.without_copy)}`);
  const errors = plan.errors.map(([text, number]) => `${count(number)} x ${text || "without an error"}`);
  return h("ul", { id: "plan" }, lines.map((line) => h("li", {}, line)), errors.length ? h("li", {}, "Their errors: ", errors.join("; ")) : null);
}
