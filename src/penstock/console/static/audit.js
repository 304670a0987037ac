// Who did what, from where, and which rule allowed or denied it.
import { get } from "./api.js";
import { count, fill, h, later, table, time } from "./dom.js";

const SINCE = [["15m", "15 minutes"], ["1h", "an hour"], ["1d", "a day"], ["1w", "a week"], ["520w", "all time"]];
const OUTCOMES = [["", "all outcomes"], ["allowed", "allowed"], ["denied", "denied"], ["failed", "failed"]];

export function audit(main) {
  const choose = (label, options) => h("select", { "aria-label": label, onchange: () => load() },
    options.map(([value, text]) => h("option", { value }, text)));
  const write = (label) => h("input", { type: "search", placeholder: label, "aria-label": label, oninput: later(300, () => load()) });
  const since = choose("Since", SINCE);
  since.value = "1h";
  const outcome = choose("Outcome", OUTCOMES);
  const user = write("User");
  const action = write("Action, such as topic or acl.create");
  const reload = h("button", { onclick: () => load() }, "Reload");
  const list = h("div", { class: "panel", id: "audit-events" });
  const note = h("p", { class: "soft" });
  main.append(h("h1", {}, "Audit"),
    h("div", { class: "bar" }, since, outcome, h("div", { class: "grow" }, user), h("div", { class: "grow" }, action),
      reload), list, note);
  let round = 0;

  async function load() {
    round += 1;
    const mine = round;
    reload.disabled = true;  // each click would make the answer outdated that is under way
    try {
      const found = await get("/api/audit", { since: since.value, outcome: outcome.value, user: user.value.trim(), action: action.value.trim() });
      if (mine !== round) return;  // another question was asked meanwhile
      fill(list, table(["time", "user", "address", "action", "outcome", "resource", ">times", "why"], found.events.map((each) => [
        time(each.time_ms), each.user, each.address, each.action, h("span", { class: each.outcome === "allowed" ? "" : "bad" }, each.outcome),
        each.resource, count(each.count), [each.rule, each.detail].filter(Boolean).join("; ")]), "no events match"));
      note.textContent = found.left_out ? `${count(found.left_out)} earlier events match as well: use a narrower search, or penstock audit --limit` : "";
    } catch (error) {
      if (mine === round) fill(list, h("p", { class: "error" }, error.message));
    } finally { if (mine === round) reload.disabled = false; }
  }
  load();
}
