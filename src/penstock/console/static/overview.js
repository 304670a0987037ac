// The state of the cluster: problems and advice, brokers, how much is written.
import { charts } from "./charts.js";
import { count, fill, h, rate, size, table, time } from "./dom.js";

export function overview(main) {
  const cards = h("div", { class: "cards" });
  const problems = h("section", { "aria-label": "Problems", id: "problems" });
  const drawn = charts("cluster", "", [
    { figure: "records", title: "Records per second", unit: "rate", id: "written" },
    { figure: "bytes", title: "Bytes written per second", unit: "byteRate", id: "bytes-written" },
    { figure: "answer_ms", title: "Slowest broker response", unit: "ms", id: "answer-time" },
    { figure: "problems", title: "Problems", unit: "count", id: "problem-count" }]);
  const brokers = h("div", { class: "panel", id: "overview-brokers" });
  const events = h("div", { class: "panel", id: "events" });
  main.append(h("h1", {}, "Overview"), problems, cards,
    drawn.element, h("h2", {}, "Brokers"), brokers,
    h("h2", {}, "Events"), events);

  function onLive(live) {
    const card = (name, value) => h("div", { class: "card" }, h("b", {}, value), h("span", { class: "soft" }, name));
    fill(cards, card("brokers", count(live.brokers.filter((each) => each.state === "up").length)),
      card("controller", live.controller === null || live.controller < 0 ? "–" : `broker ${live.controller}`),
      card("topics", count(live.topics)), card("partitions", count(live.partitions)),
      card("groups", count(live.groups)), card("records written", rate(live.records_per_s)),
      card("bytes written", `${size(live.bytes_per_s)}/s`));
    fill(problems, live.problems.length ? live.problems.map(problem)
      : h("p", { class: "fine" }, "No problems: every broker answers and every partition has all its replicas."));
    if (live.hidden.length) {
      problems.append(h("p", { class: "soft", id: "hidden" }, `You do not have the rights to see everything: ${live.hidden.join(", ")} may be incomplete.`));
    }
    fill(brokers, table(["broker", "address", "state", ">leads", ">replicas", ">records", ">bytes", ">on disk"],
      live.brokers.map((each) => [each.id, each.address, state(each), count(each.leads), count(each.replicas),
        rate(each.records_per_s), `${size(each.bytes_per_s)}/s`, size(each.size_bytes)]), "no brokers found yet"));
    fill(events, live.events.length
      ? h("ul", {}, [...live.events].reverse().map((each) => h("li", {}, h("span", { class: "soft" }, `${time(each.at).slice(11, 19)} `), each.text)))
      : h("p", { class: "soft" }, "no events since this console was started"));
  }
  return { onLive, leave: drawn.leave };
}

export function problem(each) {
  return h("div", { class: `problem ${each.severity}` }, h("b", {}, each.title), each.advice,
    each.link ? h("span", {}, " ", h("a", { href: safe(each.link) }, "See more")) : null);
}

function safe(link) {
  const [page, ...name] = link.slice(2).split("/");
  return name.length ? `#/${page}/${encodeURIComponent(name.join("/"))}` : `#/${page}`;
}

export function state(broker) {
  const text = { up: "up", silent: "not responding", missing: "not running", unknown: "unknown" }[broker.state];
  const more = [broker.controller ? ", controller" : "", broker.cordoned ? ", drained" : ""].join("");
  return h("span", { class: broker.state === "up" ? "" : "bad" }, text + more);
}
