// The frame around the pages: navigation, the health of the cluster, and running jobs.
import { begin, get, onLoginNeeded, post } from "./api.js";
import { ask, fill, h, count, toast } from "./dom.js";
import { overview } from "./overview.js";
import { topics } from "./topics.js";
import { topic } from "./topic.js";
import { groups, group } from "./groups.js";
import { queues, queue } from "./queues.js";
import { brokers } from "./brokers.js";
import { pipelines } from "./pipelines.js";
import { deployment } from "./deployment.js";
import { access } from "./access.js";
import { audit } from "./audit.js";
import { signIn } from "./sign_in.js";

const PAGES = [
  [/^#\/topics\/([^/]+)(?:\/(\w+))?$/, topic, "#/topics"],
  [/^#\/topics$/, topics, "#/topics"],
  [/^#\/groups\/(.+)$/, group, "#/groups"],
  [/^#\/groups$/, groups, "#/groups"],
  [/^#\/queues\/([^/]+)\/(.+)$/, queue, "#/queues"],
  [/^#\/queues$/, queues, "#/queues"],
  [/^#\/brokers$/, brokers, "#/brokers"],
  [/^#\/pipelines\/([^/]+)(?:\/(\w+))?$/, deployment, "#/pipelines"],
  [/^#\/pipelines$/, pipelines, "#/pipelines"],
  [/^#\/access(?:\/(\w+))?$/, access, "#/access"],
  [/^#\/audit$/, audit, "#/audit"],
  [/^/, overview, "#/"],
];
const SILENCE_MS = 12000;

let shown = { onLive: null, leave: null };
let live = null;
let source = null;
let heard = Date.now();

function open() {
  if (shown.leave) shown.leave();
  const main = document.getElementById("main");
  const [match, page, home] = PAGES.map(([pattern, show, at]) => [pattern.exec(location.hash), show, at])
    .find(([found]) => found);
  for (const link of document.querySelectorAll("nav a")) {
    if (link.getAttribute("href") === home) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  fill(main);
  shown = page(main, ...match.slice(1).map((part) => part && decodeURIComponent(part))) || {};
  if (live && shown.onLive) shown.onLive(live);
}

function listen() {
  if (source) source.close();
  source = new EventSource("/api/live");
  source.onmessage = (event) => {
    heard = Date.now();
    live = JSON.parse(event.data);
    document.body.dataset.bootstrap = live.bootstrap;
    frame();
    if (shown.onLive) shown.onLive(live);
  };
}

function frame() {
  const standing = document.getElementById("standing");
  const worst = live.problems.length ? live.problems[0].severity : "good";
  standing.className = worst;
  standing.textContent = live.problems.length
    ? `${live.problems.length} ${live.problems.length === 1 ? "problem" : "problems"}`
    : `${count(live.brokers.length)} ${live.brokers.length === 1 ? "broker" : "brokers"}, healthy`;
  if (live.read_only) standing.textContent += ", read-only";
  const running = live.jobs.filter((job) => job.state === "running" || !dismissed.has(job.number));
  fill(document.getElementById("jobs"), running.map(jobRow));
}

const dismissed = new Set();

function jobRow(job) {
  const running = job.state === "running";
  const act = running
    ? h("button", { class: "small", onclick: () => post("/api/change/stop-job", { number: job.number }).catch(tell) }, "Stop")
    : h("button", { class: "small", onclick: () => { dismissed.add(job.number); frame(); } }, "Close");
  return h("div", { class: "job" }, h("b", {}, job.title),
    h("progress", { max: Math.max(1, job.total), value: running ? job.done : Math.max(1, job.total) }),
    h("span", {}, running ? `${count(job.done)} of ${count(job.total)}` : `${job.state}: ${job.note}`), act);
}

function tell(error) { toast(error.message, true); }

function silence() {
  if (Date.now() - heard < SILENCE_MS || document.hidden) return;
  const standing = document.getElementById("standing");
  standing.className = "critical";
  standing.textContent = "the console is not responding";
  // A refused stream stays closed. If the session has ended, this request asks the user to sign in.
  if (source.readyState === EventSource.CLOSED) get("/api/groups", { limit: 1 }).then(listen, () => {});
}

function theme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("theme", root.dataset.theme);
}

function keys(event) {
  if (event.target.closest("input, textarea, select, dialog") || event.ctrlKey || event.metaKey || event.altKey) return;
  const pages = { 1: "#/", 2: "#/topics", 3: "#/groups", 4: "#/queues", 5: "#/brokers", 6: "#/pipelines", 7: "#/access", 8: "#/audit" };
  if (pages[event.key]) location.hash = pages[event.key];
  const search = document.querySelector("input[type=search]");
  if (event.key === "/" && search) { event.preventDefault(); search.focus(); }
}

onLoginNeeded((answer, error) => (answer.needs === "password" ? signIn(answer, error) : new Promise((resolve) => {
  ask("Enter the token of this console", [{ name: "token", label: "Token", kind: "password", required: true }], {
    button: "Log in", note: error || "The console printed the token when it started.",
    send: ({ token }) => resolve({ login: { token }, done: () => {} }),
  });
})));

function showUser(user) {
  if (user === null) return;
  fill(document.getElementById("user"), h("span", { class: "soft" }, user), " ",
    h("button", { type: "button", class: "small", onclick: signOut }, "Sign out"));
}

async function signOut() {
  const running = live ? live.jobs.filter((job) => job.state === "running").length : 0;
  const leave = async () => { await post("/api/sign-out"); location.replace("/"); };
  if (!running) { leave().catch(tell); return; }
  ask("Sign out?", [], { button: "Sign out", danger: true, send: leave,
    note: `${running === 1 ? "A job is" : `${running} jobs are`} running. Signing out stops ${running === 1 ? "it" : "them"}.` });
}

if (localStorage.getItem("theme")) document.documentElement.dataset.theme = localStorage.getItem("theme");
document.getElementById("theme").addEventListener("click", theme);
addEventListener("keydown", keys);
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();  // the hash names the page, not a position in it
  document.getElementById("main").focus();
});
document.addEventListener("visibilitychange", () => {
  // A hidden page needs no updates, and a browser opens at most six connections to a server.
  if (!source) return;
  if (document.hidden) source.close(); else listen();
});
begin().then((user) => {
  showUser(user);
  listen();
  open();
  addEventListener("hashchange", open);  // before the session began, every page would be refused
  setInterval(silence, 2000);
}, tell);
