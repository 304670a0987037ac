// The form that deploys a project: a folder or an archive, what happens to each checkpoint, and then the
// deploy. Nothing is changed before the plan was shown.
import { get, upload } from "./api.js";
import { ask, count, h, size, toast } from "./dom.js";
import { tooLarge, zip } from "./zip.js";

// Whether a file is one that is never deployed. The server leaves out the same files, so this only makes
// the upload smaller.
function isIgnored(path, patterns) {
  const parts = path.split("/");
  const file = parts.at(-1);
  return patterns.some((each) => (each.endsWith("/") ? parts.slice(0, -1).includes(each.slice(0, -1))
    : each.startsWith("*") ? file.endsWith(each.slice(1)) : file === each));
}

async function packed(values, signal) {
  const limits = await get("/api/upload-limits", {}, signal);
  if (values.folder.length && values.archive.length) throw new Error("choose a folder or an archive, not both");
  if (values.archive.length) {
    if (values.archive[0].size > limits.bytes_max) throw new Error(tooLarge(limits.bytes_max));
    return values.archive[0];
  }
  const files = values.folder.map((file) => [file.webkitRelativePath || file.name, file]).filter(([path]) => !isIgnored(path, limits.ignored));
  if (!files.length) throw new Error("choose the folder of a project, or an archive of it");
  if (files.length > limits.files_max) throw new Error(`the folder has more than ${count(limits.files_max)} files: leave out what is not needed`);
  return zip(files, limits.bytes_max);
}

function asked(values, known) {
  return new URLSearchParams({ name: known || values.name.trim(), new: String(!known), script: values.script.trim(),
    schedule: values.schedule, when: values.when.trim(), note: values.note.trim(), stopped: String(values.stopped) });
}

// Choices for the flows whose checkpoints do not fit. They do not change the plan, so it stays.
function choices(open) {
  const selects = new Map(open.map((each) => [each.flow, h("select", { "aria-label": each.flow }, [["", "choose"], ["reset", "begin again without its checkpoint"],
    ...(each.outcome === "moved" ? [] : [["keep", "keep its checkpoint: I know that it fits"]])].map(([key, text]) => h("option", { value: key }, text)))]));
  const rows = open.map((each) => h("label", {}, `${each.flow}: its checkpoint does not fit (${each.reason})`, selects.get(each.flow)));
  return { element: h("div", { oninput: (event) => event.stopPropagation() }, rows), selects };
}

function described(plan, known, decided, stopped) {
  const lines = [known ? `${plan.name} becomes a new version, after version ${plan.version}` : `${plan.name} is deployed for the first time`,
    `${size(plan.bytes)} of files`, ...plan.flows];
  if (plan.unnamed.length) lines.push(`Not compared, because their names or expectations are computed: flows of ${plan.unnamed.join(", ")}`);
  lines.push(stopped ? "It is not started" : "It is started");
  if (!plan.workers) lines.push("No worker is running, so nothing is run yet. Start one with: penstock pipeline worker");
  return [h("ul", { id: "plan" }, lines.map((line) => h("li", {}, line))), decided.element];
}

// `known` is the name of a deployed pipeline that gets a new version; without it, a new one is deployed.
export function deploy(known = null) {
  let plan = null;
  let decided = null;
  ask(known ? `Deploy a version of ${known}` : "Deploy a pipeline", [
    { name: "folder", label: "Folder of the project", kind: "file", webkitdirectory: true },
    { name: "archive", label: "Or an archive of it (zip)", kind: "file", accept: ".zip,application/zip" },
    { name: "script", label: "Script to run, in the outermost folder", placeholder: "job.py (empty: a project with spark-pipeline.yml)" },
    ...(known ? [] : [{ name: "name", label: "Name", placeholder: "empty: the name in the project" }]),
    { name: "schedule", label: "Schedule", options: [["", known ? "as before" : "continuous (the default)"], ...(known ? [["continuous", "continuous"]] : []), ["every", "a round every"], ["cron", "rounds at these times (cron, UTC)"]] },
    { name: "when", label: "Time of the schedule", placeholder: "30s, 10m, 1h; for cron: 0 3 * * *" },
    { name: "note", label: "Note for the history" },
    { name: "stopped", label: "Deploy without starting", kind: "checkbox" }], {
    note: "Other settings stay as before, or have their defaults. On the command line: penstock pipeline deploy.",
    lookButton: "Show what would happen", button: "Deploy",
    look: async (values, signal) => {
      plan = await upload("/api/read/deploy", asked(values, known), await packed(values, signal), signal);
      decided = choices(plan.open);
      return { content: described(plan, known, decided, values.stopped) };
    },
    send: async (values, signal) => {
      const chosen = [...decided.selects].map(([flow, select]) => [flow, select.value]);
      const missing = chosen.find(([, choice]) => !choice);
      if (missing) throw new Error(`choose what happens to ${missing[0]}`);
      const form = asked(values, known);
      form.set("expected", String(plan.version));
      form.set("files", plan.files);
      for (const [flow, choice] of chosen) form.append(choice, flow);
      const made = await upload("/api/change/deploy", form, await packed(values, signal), signal);
      toast(`${made.name} version ${made.version} is deployed`);
      location.hash = `#/pipelines/${encodeURIComponent(made.name)}`;
    },
  });
}
