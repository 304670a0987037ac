// One deployed pipeline: what it does, its graph, charts, history, logs and versions, and actions.
import { get, post, stream } from "./api.js";
import { charts } from "./charts.js";
import { deploy } from "./deploying.js";
import { ask, count, every, fill, h, quoted, rate, size, table, time, toast } from "./dom.js";
import { graph, kept, seconds, skew } from "./graph.js";
import { backfill, backfills, recompute } from "./reprocessing.js";

const LINES = 5000;
const GOOD = ["RUNNING", "WAITING FOR ITS TIME"];
const BAD = ["FAILED", "NO REPORTS"];
const CALM = ["STOPPED", "COMPLETED"];
const TABS = [["overview", "Overview"], ["charts", "Charts"], ["history", "History"], ["logs", "Logs"], ["versions", "Versions"]];

export function state(each) {
  const kind = GOOD.includes(each.state) ? "good" : BAD.includes(each.state) ? "bad" : CALM.includes(each.state) ? "soft" : "warn";
  return h("span", { class: `state ${kind}` }, each.state.toLowerCase());
}

export function next(each, now = Date.now()) {
  if (!each.next_ms) return "–";
  return each.next_ms <= now ? "now" : `in ${seconds(Math.ceil((each.next_ms - now) / 1000))}`;
}

export function lag(each) {
  if (each.lag === null) return each.lag_s === null ? "–" : seconds(each.lag_s);
  return `${count(each.lag)}${each.lag_s === null ? "" : `, ${seconds(each.lag_s)}`}`;
}

// The user's own line of code comes first, then the message.
export function failure(error, id = null) {
  const found = /^(\S.*?, line \d+): (.*)$/s.exec(error);
  return h("div", { class: "failure", role: "alert", id }, found ? [h("code", {}, found[1]), found[2]] : error);
}

export function deployment(main, name, tab = "overview") {
  const path = encodeURIComponent(name);
  const at = `#/pipelines/${path}`;
  const facts = h("p", { class: "soft", id: "facts" });
  const trouble = h("div", { id: "trouble" });
  const actions = h("div", { class: "bar", id: "actions" });
  const body = h("div", {});
  const link = ([key, text]) => h("a", { href: key === "overview" ? at : `${at}/${key}`, "aria-current": tab === key ? "page" : null }, text);
  main.append(h("h1", {}, name), facts, actions, trouble, h("div", { class: "tabs" }, TABS.map(link)), body);
  const reading = new AbortController();
  const page = { overview, charts: drawCharts, history, logs, versions }[tab] || overview;
  const shown = page(body, name, act, reading.signal);
  let gone = false;
  let told = "";
  let latest = null;

  async function load() {
    try {
      latest = await get(`/api/deployments/${path}`);
      if (gone) return;
      frame();
      if (shown.show) shown.show(latest);
    } catch (error) { if (!gone) tellTrouble(failure(error.message), error.message); }
  }

  function frame() {
    fill(facts, state(latest), ` version ${latest.version}, ${latest.schedule}`, latest.worker ? `, worker ${latest.worker} on ${latest.host}` : "",
      latest.round ? `, round ${count(latest.round)}` : "", latest.failures ? `, failed ${count(latest.failures)} times in a row` : "",
      latest.next_ms ? `, next ${next(latest)}` : "");
    const stopped = latest.wanted === "STOPPED";
    const ended = ["FAILED", "COMPLETED"].includes(latest.state);
    for (const button of actions.querySelectorAll("button")) button.disabled = { Start: !stopped && !ended, Stop: stopped }[button.textContent] || false;
    const flowed = latest.flows.filter((flow) => flow.error && flow.error !== latest.error);
    tellTrouble([latest.hidden ? h("div", { class: "problem" }, latest.hidden) : null, latest.note ? h("div", { class: "problem" }, latest.note) : null, latest.error ? failure(latest.error, "failure") : null,
      flowed.map((flow) => failure(`${placed(flow)}${flow.name}: ${flow.error}`))], JSON.stringify([latest.hidden, latest.note, latest.error, flowed]));
  }

  // Written only if it has changed: screen readers read it aloud.
  function tellTrouble(content, key) {
    if (key === told) return;
    told = key;
    fill(trouble, content);
  }

  function placed(flow) {
    if (/, line \d+: /.test(flow.error)) return "";
    const node = latest.graph.nodes.find((each) => each.flow === flow.name && each.file);
    return node && node.line ? `${node.file}, line ${node.line}: ` : "";
  }

  async function act(action, more = {}) {
    const done = await post(`/api/change/deployment/${path}`, { action, ...more });
    await load();
    return done;
  }

  async function press(action, done) {
    try {
      await act(action);
      toast(done);
    } catch (error) { toast(error.message, true); }
  }

  function remove() {
    ask(`Delete ${name}`, [{ name: "typed", label: `Type ${name} to confirm` }], {
      button: "Delete for good", danger: true,
      note: "The pipeline is stopped, and all of its versions will be lost. Its tables and checkpoints are kept where they are.",
      send: async ({ typed }) => {
        await post(`/api/change/delete-deployment/${path}`, { typed });
        toast(`${name} was deleted`);
        location.hash = "#/pipelines";
      },
    });
  }

  fill(actions, h("button", { onclick: () => press("start", `${name} will start`) }, "Start"),
    h("button", { onclick: () => press("stop", `${name} will stop`) }, "Stop"),
    h("button", { onclick: () => press("restart", `${name} will restart`) }, "Restart"),
    h("button", { onclick: () => deploy(name) }, "Deploy a version"),
    h("button", { class: "danger", onclick: remove }, "Delete"));
  const stop = every(2000, load);
  return { leave: () => { gone = true; stop(); reading.abort(); if (shown.leave) shown.leave(); } };
}

function overview(body, name, act) {
  const drawn = graph(name);
  const filled = backfills(name, act);
  const again = recompute(name, act);
  const cards = h("div", { class: "cards", id: "figures" });
  const flows = h("div", { class: "panel", id: "flows" });
  const settings = h("div", { class: "panel", id: "settings" });
  body.append(cards, h("h2", {}, "Graph"), drawn.element, h("h2", {}, "Flows"), flows, h("h2", {}, "Backfills"), filled.element,
    h("h2", {}, "Recompute"), again.element, h("h2", {}, "Deployment"), settings);
  const card = (value, label) => h("div", { class: "card" }, h("b", {}, value), label);
  return {
    show: (found) => {
      fill(cards, card(rate(found.rows_per_s), "rows read"), card(found.lag === null ? "–" : count(found.lag), "lag in records"),
        card(found.lag_s === null ? "–" : seconds(found.lag_s), "lag in time"), card(count(found.restarts), "starts in 24 hours"),
        card(count(found.failures), "failures in a row"));
      drawn.show(found.graph, found.flows);
      fill(flows, table(["flow", "status", ">rows", ">rows/s", ">lag", ">last batch", "watermark", ">state", ">skew", "violations", "backfill"], found.flows.map((flow) => [
        flow.name, h("span", { class: flow.status === "FAILED" ? "bad" : "" }, flow.status.toLowerCase()), flow.streaming ? count(flow.rows) : "–",
        flow.rows_per_s === null ? "–" : rate(flow.rows_per_s), lag(flow), flow.batch === null ? "–" : `${count(flow.batch_rows)} in ${seconds((flow.batch_ms || 0) / 1000)}`,
        flow.watermark || "–", kept(flow) ?? "–", skew(flow) ?? "–",
        Object.entries(flow.violations).map(([rule, number]) => `${rule} ${count(number)}`).join(", "), backfill(flow.backfill)]), "The pipeline has not run yet."));
      filled.show(found);
      again.show(found);
      fill(settings, described(found));
    },
  };
}

function described(found) {
  const given = found.deployment;
  const command = `penstock pipeline deploy DIR --name ${quoted(found.name)} --bootstrap ${document.body.dataset.bootstrap || "HOST:PORT"}`;
  return [table(["setting", "value"], [["master", given.master], ["memory", size(given.memory_mb * 2 ** 20)], ["storage", given.storage || "a folder of the worker"],
    ["automatic rollback", given.auto_rollback ? "yes" : "no"], ["secrets", given.secrets.join(", ") || "none"], ["Spark settings", given.settings.join(", ") || "none"],
    ["last change", `${time(given.changed_ms).slice(0, 19)}${given.changed_by ? ` by ${given.changed_by}` : ""}, revision ${given.revision}`]]),
  h("p", { class: "soft" }, "A new version can also be deployed on the command line:"), h("pre", {}, command)];
}

function drawCharts(body, name) {
  const drawn = charts("pipeline", name, [
    { figure: "rows", title: "Rows read per second", unit: "rate", id: "pipeline-rows" },
    { figure: "lag", title: "Lag in records", unit: "count", id: "pipeline-lag" },
    { figure: "lag_s", title: "Lag in time", unit: "seconds", id: "pipeline-lag-time" },
    { figure: "batch_ms", title: "Duration of the last batch", unit: "ms", id: "pipeline-batches" },
    { figure: "state_rows", title: "Rows of state", unit: "count", id: "pipeline-state", empty: "No flow keeps state in this time range." },
    { figure: "skew", title: "Skew: largest partition to the median one", unit: "count", id: "pipeline-skew", empty: "No flow has read enough rows from several partitions in this time range." }]);
  body.append(drawn.element);
  return { leave: drawn.leave };
}

const TOLD = { failed: "bad", "rolled-back": "bad" };

function history(body) {
  const list = h("div", { class: "panel", id: "history" });
  body.append(list);
  return {
    show: (found) => fill(list, table(["time (UTC)", "what", ">version", "worker", "by", ""], found.events.map((event) => [
      time(event.at_ms).slice(0, 19), h("span", { class: TOLD[event.what] || "" }, event.what), event.version || "–", event.worker || "–", event.by || "–",
      h("span", { class: "told" }, event.text)]), "Nothing has happened yet.")),
  };
}

function logs(body, name, act, signal) {
  const lines = h("pre", { class: "log", id: "log", tabindex: "0", role: "log", "aria-label": `Log of ${name}` });
  const filter = h("input", { type: "search", placeholder: "Filter lines ( / )", "aria-label": "Filter lines", oninput: () => draw() });
  const note = h("span", { class: "soft", role: "status" }, "reading");
  body.append(h("div", { class: "bar" }, h("div", { class: "grow" }, filter), note), lines);
  let kept = [];

  function text(line) { return `${time(line.at_ms).slice(11, 19)} v${line.version} ${line.text}\n`; }

  function passes(line) { return line.text.toLowerCase().includes(filter.value.trim().toLowerCase()); }

  // Stays at the end if it is there; a reader who has scrolled up is left alone.
  function atEnd(work) {
    const end = lines.scrollHeight - lines.scrollTop - lines.clientHeight < 30;
    work();
    if (end) lines.scrollTop = lines.scrollHeight;
  }

  function draw() { atEnd(() => { lines.textContent = kept.filter(passes).map(text).join(""); }); }

  function add(found) {
    if (found.error) { note.textContent = found.error; return; }
    note.textContent = found.partial ? "live; older lines: penstock pipeline logs" : "live";
    if (!found.lines.length) return;
    kept.push(...found.lines);
    if (kept.length > LINES) { kept = kept.slice(-LINES); draw(); return; }
    atEnd(() => lines.append(found.lines.filter(passes).map(text).join("")));
  }

  stream(`/api/read/logs/${encodeURIComponent(name)}`, {}, signal, add).then(
    () => { note.textContent = "ended"; },
    (error) => { if (error.name !== "AbortError") note.textContent = error.message; });
  return {};
}

const UNDECIDED = ["not kept", "moved"];
const OUTCOMES = { new: "new", removed: "is removed", unchanged: "keeps its checkpoint", kept: "keeps its checkpoint", recomputed: "is recomputed" };

function versions(body, name, act) {
  const list = h("div", { class: "panel", id: "versions" });
  body.append(list);
  let told = "";

  function back({ number, changes }) {
    const open = changes.filter((each) => UNDECIDED.includes(each.outcome));
    const kept = changes.filter((each) => !UNDECIDED.includes(each.outcome));
    const fields = open.map((each) => ({
      name: each.flow, label: `${each.flow}: its checkpoint does not fit (${each.reason})`,
      options: [["", "choose"], ["reset", "restart without its checkpoint"], ...(each.outcome === "moved" ? [] : [["keep", "keep its checkpoint: I know that it fits"]])],
    }));
    ask(`Roll back to version ${number}`, fields, {
      button: "Roll back",
      note: ["The pipeline restarts with the files of that version. Its tables stay as they are.",
        kept.length ? h("ul", {}, kept.map((each) => h("li", {}, `${each.flow}: ${each.pending ? "begins again without its checkpoint (as was asked for earlier, and is not done yet)" : `${OUTCOMES[each.outcome]} (${each.reason})`}`))) : null],
      send: async (chosen) => {
        const missing = open.find((each) => !chosen[each.flow]);
        if (missing) throw new Error(`choose what happens to ${missing.flow}`);
        const flows = (choice) => open.map((each) => each.flow).filter((flow) => chosen[flow] === choice);
        await act("rollback", { version: number, reset: flows("reset"), keep: flows("keep") });
        toast(`${name} will run version ${number}`);
      },
    });
  }

  return {
    show: (found) => {
      if (JSON.stringify(found.versions) === told) return;
      told = JSON.stringify(found.versions);
      fill(list, table([">version", "", "deployed (UTC)", "by", "kind", "entry", ">size", "note", ""], found.versions.map((each) => [each.number,
        each.current ? h("b", {}, "current") : each.good ? "last good" : "", time(each.deployed_ms).slice(0, 19), each.deployed_by || "–", each.kind, each.entry,
        size(each.archive_size), h("span", { class: "told" }, each.note),
        each.current ? "" : h("button", { class: "small", onclick: () => back(each), "aria-label": `Roll back to version ${each.number}` }, "Roll back")]), "No versions."));
    },
  };
}
