// Pipelines on Spark: deployed ones with their workers, those of this user, and streaming queries that
// report to the console.
import { get } from "./api.js";
import { charts } from "./charts.js";
import { deploy } from "./deploying.js";
import { lag, next, state } from "./deployment.js";
import { count, every, fill, h, rate, size, table, time } from "./dom.js";

export function pipelines(main) {
  const list = h("div", { id: "pipelines" });
  const deployed = h("div", { class: "panel", id: "deployments" });
  const workers = h("div", { class: "panel", id: "workers" });
  const queries = h("div", { class: "panel", id: "queries" });
  const names = new Map();
  const drawn = charts("queries", "", [
    { figure: "rows", title: "Rows read per second", unit: "rate", id: "query-rows" },
    { figure: "lag", title: "Lag in records", unit: "count", id: "query-lag" },
    { figure: "batch_ms", title: "Duration of the last batch", unit: "ms", id: "query-batches" }], (line) => names.get(line) || line);
  const actions = h("div", { class: "bar" }, h("button", { onclick: () => deploy() }, "Deploy a pipeline"));
  main.append(h("h1", {}, "Pipelines"), actions, deployed, h("h2", {}, "Workers"), workers, h("h2", {}, "Runs on this machine"), list, h("h2", {}, "Streaming queries"), queries, h("h2", {}, "Over time"), drawn.element);

  async function load() {
    try {
      const found = await get("/api/pipelines");
      fill(deployed, found.hidden ? h("p", { class: "problem" }, found.hidden) : null, table(["pipeline", "state", ">version", "worker", ">round", ">rows/s", ">lag", ">failures", "next round", "error"],
        found.deployments.map(deployment), found.hidden ? "No deployed pipelines can be shown."
          : "No pipelines are deployed in this cluster, or you may not see them. Deploy one with: penstock pipeline deploy DIR"));
      fill(workers, table(["worker", "host", "pipelines", ">memory", "Spark", "Penstock", "last report"], found.workers.map(worker),
        "No worker is running. Start one with: penstock pipeline worker --data DIR"));
      fill(list, found.pipelines.length ? found.pipelines.map(pipeline)
        : h("p", { class: "soft" }, "No pipelines of this user yet. Create one with: penstock pipeline init NAME"));
      for (const each of found.queries) names.set(each.id, each.name);
      fill(queries, table(["query", "application", "state", ">rows", ">rows/s", ">batch time", ">lag", "last report", "last error"],
        found.queries.map(query), "No queries report to this console. To add one, call this in its PySpark program: penstock.spark.watch(spark, \"HOST:PORT\")"));
    } catch (error) { fill(list, h("p", { class: "error" }, error.message)); }
  }
  const stop = every(2000, load);
  return { leave: () => { stop(); drawn.leave(); } };
}

function deployment(each) {
  return [h("a", { href: `#/pipelines/${encodeURIComponent(each.name)}` }, each.name), h("span", { title: each.note }, state(each)),
    each.running_version && each.running_version !== each.version ? `${each.running_version} → ${each.version}` : each.version, each.worker || "–", count(each.round),
    rate(each.rows_per_s), lag(each), each.failures ? h("span", { class: "bad" }, count(each.failures)) : 0, next(each), h("span", { class: "told error" }, each.error)];
}

function worker(each) {
  return [each.id, each.host, h("span", { class: "told" }, each.pipelines.map((name, at) => [at ? ", " : "", h("a", { href: `#/pipelines/${encodeURIComponent(name)}` }, name)])),
    each.memory_mb ? size(each.memory_mb * 2 ** 20) : "no limit", each.spark || "–", each.penstock || "–",
    h("span", { class: each.silent ? "bad" : "" }, each.silent ? `no reports since ${time(each.updated_ms).slice(0, 19)}` : each.stopping ? "stopping" : time(each.updated_ms).slice(0, 19))];
}

function pipeline(each) {
  const bad = each.state === "FAILED" || each.state === "INTERRUPTED";
  return h("section", { class: "panel" }, h("h2", {}, each.name, " ", h("span", { class: bad ? "bad" : "soft" }, each.state.toLowerCase())),
    h("p", { class: "soft" }, each.path, each.updated_ms ? `, round ${each.round}, last report ${time(each.updated_ms).slice(0, 19)}` : ""),
    each.error ? h("p", { class: "error" }, each.error) : null,
    table(["flow", "status", ">rows", ">rows/s", ">batch time", ">lag", "last error"], each.flows.map((flow) => [
      flow.name, String(flow.status).toLowerCase(), flow.streaming ? count(flow.rows) : "–", flow.batch === null ? "–" : count(Math.round(flow.rows_per_s)),
      flow.batch === null ? "–" : `${(flow.batch_ms / 1000).toFixed(1)} s`, count(flow.lag), flow.error || ""]), "this pipeline has never run; to run it: penstock pipeline run"));
}

function query(each) {
  const bad = each.state === "FAILED" || each.state === "SILENT";
  return [h("span", { title: `${each.sources.join(", ")} → ${each.sink}` }, each.name || each.id), `${each.application} on ${each.host}`,
    h("span", { class: bad ? "bad" : "" }, each.state === "SILENT" ? "no reports" : each.state.toLowerCase()),
    count(each.rows), each.batch === null ? "–" : count(Math.round(each.rows_per_s)),
    each.batch === null ? "–" : `${(each.batch_ms / 1000).toFixed(1)} s`, count(each.lag), time(each.updated_ms).slice(0, 19), each.error];
}
