// Brokers: load, disks, leaders; draining one and rebalancing all, with the plan shown first.
import { post } from "./api.js";
import { charts } from "./charts.js";
import { ask, count, fill, h, rate, size, table, toast, whole } from "./dom.js";
import { problem, state } from "./overview.js";

export function brokers(main) {
  const problems = h("div", {});
  const list = h("div", { class: "panel", id: "brokers" });
  const disks = h("div", { class: "panel", id: "disks" });
  const figures = charts("brokers", "", [
    { figure: "bytes", title: "Bytes written per second, all replicas", unit: "byteRate", id: "broker-bytes" },
    { figure: "records", title: "Records written per second, as leader", unit: "rate", id: "broker-records" },
    { figure: "answer_ms", title: "Response time", unit: "ms", id: "broker-answers" },
    { figure: "disk", title: "Disk space used", unit: "bytes", id: "broker-disks" }]);
  const moving = h("p", { class: "soft", id: "moving" });
  main.append(h("h1", {}, "Brokers"), problems,
    h("div", { class: "bar" }, h("button", { class: "primary", onclick: () => plan([]) }, "Rebalance"),
      h("button", { onclick: elect }, "Elect preferred leaders"), h("button", { onclick: cancel }, "Cancel moves")),
    moving, list, h("h2", {}, "Disks"), disks, h("h2", {}, "Over time"), figures.element);
  let drawn = "";

  function onLive(live) {
    const seen = JSON.stringify([live.brokers, live.problems, live.moving]);
    if (seen === drawn) return;  // a button that is being pressed stays
    drawn = seen;
    fill(problems, live.problems.filter((each) => each.link === "#/brokers").map(problem));
    moving.textContent = live.moving ? `${count(live.moving)} partitions are being moved` : "";
    const most = Math.max(1, ...live.brokers.map((each) => each.replicas));
    fill(list, table(["broker", "address", "rack", "state", ">leads", ">replicas", "load", ">records", ">bytes", ">on disk", ""], live.brokers.map((each) => [
      each.id, each.address, each.rack, state(each), count(each.leads), count(each.replicas),
      h("progress", { max: most, value: each.replicas, title: `${each.replicas} of at most ${most}` }), rate(each.records_per_s), `${size(each.bytes_per_s)}/s`, size(each.size_bytes),
      [each.cordoned ? h("button", { class: "small", onclick: () => undrain(each.id), "aria-label": `Undrain broker ${each.id}` }, "Undrain") : null,
        h("button", { class: "small", onclick: () => plan([each.id]), "aria-label": `Drain broker ${each.id}` }, "Drain")]])));
    fill(disks, table(["broker", "directory", ">free", ">of", "used", "error"], live.brokers.flatMap((each) => each.disks.map((disk) => [
      each.id, disk.path, size(disk.usable_bytes), size(disk.total_bytes),
      disk.total_bytes > 0 ? h("progress", { max: disk.total_bytes, value: disk.total_bytes - disk.usable_bytes }) : "–", disk.error]))));
  }

  async function plan(drain) {
    const title = drain.length ? `Drain broker ${drain[0]}` : "Rebalance the cluster";
    try {
      const found = await post("/api/read/plan", { drain });
      if (!found.moves.length) { toast("nothing to move: replicas and leaders are in place"); return; }
      ask(title, [{ name: "throttle", label: "Bytes per second that each broker may copy (empty: chosen automatically; 0: no limit)", inputmode: "numeric" }], {
        button: drain.length ? "Drain" : "Rebalance", danger: true,
        note: `${count(found.moves.length)} partitions to change, ${count(found.copies)} replicas to copy (${size(found.copied_bytes)}).`,
        send: async ({ throttle }) => {
          await post("/api/change/rebalance", { drain, throttle: throttle.trim() ? whole(throttle, "the limit") : null });
          toast("the moves have started");
        },
      });
      const rows = Object.keys(found.after).map((id) => [id, change(found, id, "replicas"), change(found, id, "leads")]);
      document.querySelector("dialog:last-of-type form p").after(h("div", { id: "plan" }, table(["broker", "replicas", "preferred leader"], rows),
        table(["partition", "from", "to"], found.moves.slice(0, 20).map((each) => [`${each.topic}-${each.partition}`, each.from.join(", "), each.to.join(", ")])),
        found.moves.length > 20 ? h("p", { class: "soft" }, `and ${count(found.moves.length - 20)} more`) : null));
    } catch (error) { toast(error.message, true); }
  }

  async function undrain(broker) {
    try {
      await post("/api/change/undrain", { broker });
      toast(`broker ${broker} can receive partitions again; to move some to it, use Rebalance`);
    } catch (error) { toast(error.message, true); }
  }

  async function elect() {
    try {
      const found = await post("/api/change/elect");
      toast(found.refused.length ? found.refused[0] : found.elected ? `${count(found.elected)} partitions got a new leader` : "no election was needed", found.refused.length > 0);
    } catch (error) { toast(error.message, true); }
  }

  async function cancel() {
    try { toast(`${count((await post("/api/change/cancel-moves")).cancelled)} moves cancelled`); } catch (error) { toast(error.message, true); }
  }
  return { onLive, leave: figures.leave };
}

function change(found, id, what) {
  const before = found.before[id][what];
  const after = found.after[id][what];
  return before === after ? count(before) : `${count(before)} → ${count(after)}`;
}
