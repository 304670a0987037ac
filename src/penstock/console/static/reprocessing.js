// Backfills of the flows of a deployed pipeline, the recompute of its tables, and swaps. Buttons stay
// the same elements while figures change, so that they keep the focus and no click is lost.
import { post } from "./api.js";
import { ask, count, fill, h, rate, table, time, toast } from "./dom.js";
import { seconds } from "./graph.js";

const ENDING = ["REQUESTED", "RUNNING"];
const at = (ms) => `${time(ms).slice(0, 19)} UTC`;
const records = (number) => `${count(number)} ${number === 1 ? "record" : "records"}`;

// How far a backfill is.
export function backfill(each) {
  if (!each) return "–";
  const part = each.total ? Math.floor((100 * each.done) / each.total) : 100;
  const left = each.left_s === null ? "" : `, ${seconds(each.left_s)} left`;
  const lost = each.lost ? `, ${count(each.lost)} deleted before they were read` : "";
  return `${each.state.toLowerCase()}: ${part} % of ${count(each.total)}${each.per_s ? `, ${rate(each.per_s)}` : ""}${left}${lost}`;
}

function planned(plan) {
  const lines = [`${records(plan.records)} in ${count(plan.partitions)} ${plan.partitions === 1 ? "partition" : "partitions"}, from ${at(plan.from_ms)} to ${at(plan.to_ms)}`];
  if (plan.left_out) lines.push(`Left out, because the flow reads them itself: ${records(plan.left_out)}`);
  if (plan.deleted) {
    const oldest = plan.oldest_ms > 0 ? `, the oldest record there is from ${at(plan.oldest_ms)}` : "";
    lines.push(`Deleted by retention, in partitions that start after the beginning of the range: ${records(plan.deleted)}${oldest}`);
  }
  if (plan.repeated) lines.push(`Read again: ${records(plan.repeated)}. Their rows will be in the result twice, unless it replaces rows by key`);
  return h("ul", { id: "plan" }, lines.map((line) => h("li", {}, line)));
}

// One line for each streaming flow, with the state of its last backfill.
export function backfills(name, act) {
  const element = h("div", { class: "panel", id: "backfills" });
  let names = "";
  let lines = new Map();

  function begin(flow) {
    let plan = null;
    const body = ({ since, to, again }) => ({ flow, from: since, to, again });
    ask(`Backfill ${flow}`, [
      { name: "since", label: "From", placeholder: "2026-01-31T12:00:00Z (UTC by default), or 7d (ago: s m h d w)", required: true },
      { name: "to", label: "To", placeholder: "now" },
      { name: "again", label: "Read records again that the flow has already read (--again)", kind: "checkbox" }], {
      note: "The running stream reads older records of its topics beside new ones, into the same table, each exactly once. The range refers to the timestamps of the records.",
      lookButton: "Show what would be read", button: "Begin backfill",
      look: async (values) => {
        plan = await post(`/api/read/backfill/${encodeURIComponent(name)}`, body(values));
        return { content: planned(plan), refused: plan.refused };
      },
      send: async () => {
        // With the times that were shown: "now" is later by now.
        const made = await act("backfill", { flow, from: String(plan.from_ms), to: String(plan.to_ms), again: plan.again });
        toast(`backfill ${made.id} reads ${records(made.records)} into ${flow}`);
      },
    });
  }

  function cancel(flow) {
    ask(`Cancel the backfill of ${flow}`, [], {
      button: "Cancel backfill", danger: true, note: "The backfill stops where it is. The records that it has read stay in the table.",
      send: async () => {
        const ended = await act("cancel-backfill", { flow });
        toast(`backfill ${ended.id} of ${flow} is being cancelled`);
      },
    });
  }

  function line(flow) {
    const found = { open: false, state: h("span", {}), range: h("span", {}), by: h("span", {}) };
    found.button = h("button", { class: "small", onclick: () => (found.open ? cancel(flow) : begin(flow)) });
    return found;
  }

  return {
    element,
    show: (found) => {
      const flows = found.flows.filter((flow) => flow.streaming);
      if (JSON.stringify(flows.map((flow) => flow.name)) !== names) {
        names = JSON.stringify(flows.map((flow) => flow.name));
        lines = new Map(flows.map((flow) => [flow.name, line(flow.name)]));
        fill(element, table(["flow", "last backfill", "range", "by", ""], [...lines].map(([flow, { state, range, by, button }]) => [flow, state, range, by, button]),
          "Streaming flows are listed here when the pipeline has run."));
      }
      for (const [flow, shown] of lines) {
        const last = found.backfills.find((each) => each.flow === flow);
        shown.open = Boolean(last) && ENDING.includes(last.state);
        shown.state.textContent = backfill(last);
        shown.range.textContent = last ? `${at(last.from_ms)} to ${at(last.to_ms)}${last.again ? ", again" : ""}` : "–";
        shown.by.textContent = (last && last.requested_by) || "–";
        const label = shown.open ? "Cancel backfill" : "Backfill";
        if (shown.button.textContent !== label) shown.button.textContent = label;
        shown.button.setAttribute("aria-label", `${label} of ${flow}`);
        shown.button.disabled = Boolean(last) && last.state === "CANCELLING";
      }
    },
  };
}

// The recompute that is in progress, and what can be done.
export function recompute(name, act) {
  const story = h("div", { id: "recompute-story" });
  const element = h("div", { class: "panel", id: "recompute" });
  let latest = null;
  let told = "";

  function begin() {
    const known = latest.tables;
    const fields = known && known.length
      ? known.map((each) => ({ name: `table ${each}`, label: each, kind: "checkbox", value: true }))
      : [{ name: "tables", label: "Tables, separated by commas", required: true }];
    const body = (values) => ({
      tables: known && known.length ? known.filter((each) => values[`table ${each}`]) : values.tables.split(","),
      swap: values.swap, keep: values.keep,
    });
    ask(`Recompute the tables of ${name}`, [...fields,
      { name: "swap", label: "Swap", options: [["when-caught-up", "when the new tables have caught up"], ["manual", "by hand, with the Swap button"]] },
      { name: "keep", label: "Keep the old tables for", value: "7d", required: true }], {
      note: "The running version continues. A second driver reads the topics from the beginning into new tables, which then replace the old ones in one step. All streaming tables are recomputed together.",
      lookButton: "Check", button: "Begin recompute",
      look: async (values) => ({ content: checked(await post(`/api/read/recompute/${encodeURIComponent(name)}`, body(values))) }),
      send: async (values) => {
        await act("recompute", body(values));
        toast(`the tables of ${name} are being recomputed`);
      },
    });
  }

  function checked({ tables, deleted }) {
    const lost = Object.entries(deleted).map(([topic, number]) => h("li", {}, `Retention has deleted the first records of ${topic} (${records(number)}): the new tables will not have them`));
    return h("ul", { id: "plan" }, h("li", {}, `Recomputed from the beginning of their topics: ${tables.join(", ")}`), lost);
  }

  function confirm(button, action, title, note, done, danger = false) {
    return h("button", { class: danger ? "danger" : null, hidden: true, onclick: () => ask(title, [], {
      button, danger, note, send: async () => { await act(action); toast(done); } }) }, button);
  }

  const buttons = {
    begin: h("button", { hidden: true, onclick: begin }, "Recompute"),
    swap: confirm("Swap", "swap", `Swap the tables of ${name}`, "The new tables replace the old ones as soon as they have caught up. Updates pause for one round and the start of Spark.",
      `the tables of ${name} will be swapped as soon as the new ones have caught up`),
    cancel: confirm("Cancel recompute", "cancel-recompute", `Cancel the recompute of ${name}`, "The new tables are deleted. The old ones stay as they are.", `the recompute of ${name} is being cancelled`, true),
    back: confirm("Swap back", "swap-back", `Swap the tables of ${name} back`, "The pipeline returns to the tables and the version before the last swap. They continue where they stopped. The current tables are kept for the same time.",
      `${name} is returning to the tables before the swap`),
  };
  element.append(story, h("div", { class: "bar" }, Object.values(buttons)));

  return {
    element,
    show: (found) => {
      latest = found;
      const running = found.recompute;
      buttons.begin.hidden = Boolean(running);
      buttons.swap.hidden = !running || running.swap !== "manual" || running.swap_asked;
      buttons.cancel.hidden = !running;
      buttons.back.hidden = Boolean(running) || !found.kept;
      const key = JSON.stringify([running, found.kept]);
      if (key === told) return;
      told = key;
      fill(story, running ? progress(running) : h("p", { class: "soft" }, "No tables are being recomputed."),
        found.kept ? h("p", {}, `The tables before the last swap, of version ${found.kept.version}, are kept until ${at(found.kept.until_ms)}.`) : null);
    },
  };
}

function progress(running) {
  const lines = [`${running.tables.join(", ")} with version ${running.version}, since ${at(running.began_ms)}: ${running.stage}, ${running.state.toLowerCase()}${running.rounds ? `, round ${count(running.rounds)}` : ""}`];
  if (running.lag !== null) lines.push(`New tables: ${records(running.lag)} behind their topics${running.served_lag === null ? "" : `; served tables: ${count(running.served_lag)}`}`);
  const byHand = running.swap === "manual" && !running.swap_asked;
  if (!byHand) lines.push("The new tables replace the old ones when they have caught up.");
  else lines.push(running.caught_up ? "The new tables have caught up: press Swap to put them in use." : "The new tables are put in use with the Swap button.");
  return [lines.map((line) => h("p", {}, line)), running.error ? h("div", { class: "failure", role: "alert" }, running.error) : null];
}
