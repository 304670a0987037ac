// Who may do what: users, access rules (ACLs), roles and quotas. The brokers decide what is shown.
import { get, post } from "./api.js";
import { ask, count, fill, h, later, table, toast } from "./dom.js";

const TABS = [["users", "Users", users], ["acls", "Access rules", acls], ["roles", "Roles", roles], ["quotas", "Quotas", quotas], ["check", "Check", check]];
const OPERATIONS = ["read", "write", "create", "delete", "alter", "describe", "cluster-action", "describe-configs", "alter-configs",
  "idempotent-write", "create-tokens", "describe-tokens", "all"].map((each) => [each, each]);
const RESOURCE = "Resource, such as topic:orders, group:billing-* or cluster:kafka-cluster";

export function access(main, tab = "users") {
  const [, , show] = TABS.find(([name]) => name === tab) || TABS[0];
  main.append(h("h1", {}, "Access"), h("div", { class: "tabs" }, TABS.map(([name, text]) =>
    h("a", { href: `#/access/${name}`, "aria-current": name === tab ? "page" : null }, text))));
  return show(main);
}

function page(main, id, bar, draw) {
  const list = h("div", { class: "panel", id });
  main.append(h("div", { class: "bar" }, bar), list);
  let round = 0;
  async function load() {
    round += 1;
    const mine = round;
    try {
      const content = await draw();
      if (mine === round) fill(list, content);
    } catch (error) { if (mine === round) fill(list, h("p", { class: "error" }, error.message)); }
  }
  load();
  return load;
}

const small = (text, act, danger = false) => h("button", { class: danger ? "small danger" : "small", onclick: act }, text);
const more = (found, rows) => (found.total > rows.length ? h("p", { class: "soft" }, `${count(rows.length)} of ${count(found.total)} are shown`) : null);

function users(main) {
  const search = h("input", { type: "search", placeholder: "Search users ( / )", "aria-label": "Search users", oninput: later(200, () => load()) });
  const password = { name: "password", label: "Password", kind: "password", required: true, autocomplete: "new-password" };
  const again = { name: "again", label: "Repeat the password", kind: "password", required: true, autocomplete: "new-password" };
  const same = (values) => { if (values.password !== values.again) throw new Error("the passwords differ: type them again"); };
  const load = page(main, "users", [h("div", { class: "grow" }, search), h("button", { class: "primary", onclick: add }, "Add user")], async () => {
    const found = await get("/api/access/users", { search: search.value });
    return [table(["user", "mechanisms", ""], found.users.map((each) => [each.user, Object.keys(each.mechanisms).join(", "),
      [small("Rules", () => { sessionStorage.setItem("acl-user", each.user); location.hash = "#/access/acls"; }), " ",
        small("New password", () => change(each.user)), " ", small("Delete", () => remove(each.user), true)]]),
    "no users with passwords; users with certificates or tokens are not stored"), more(found, found.users)];
  });

  function add() {
    ask("Add a user", [{ name: "user", label: "User name", required: true },
      { name: "mechanism", label: "Mechanism", options: [["SCRAM-SHA-512", "SCRAM-SHA-512"], ["SCRAM-SHA-256", "SCRAM-SHA-256"]] }, password, again], {
      button: "Add", note: "A new user has no rights until you grant a role or add an access rule.",
      send: async (values) => {
        same(values);
        await post("/api/change/user", { user: values.user, mechanism: values.mechanism, password: values.password });
        toast(`user ${values.user} was added`);
        load();
      },
    });
  }

  function change(user) {
    ask(`New password of ${user}`, [password, again], { button: "Set the password",
      note: "Open connections stay open. The next login needs the new password.",
      send: async (values) => { same(values); await post("/api/change/password", { user, password: values.password }); toast(`the password of ${user} was changed`); } });
  }

  function remove(user) {
    ask(`Delete user ${user}`, [{ name: "typed", label: `Type ${user} to confirm` }], { button: "Delete for good", danger: true,
      note: "The user's access rules and roles are kept.",
      send: async ({ typed }) => {
        const done = await post("/api/change/delete-user", { user, typed });
        toast(`user ${user} was deleted${done.rules_left ? `; ${count(done.rules_left)} access rules name this user` : ""}`);
        load();
      } });
  }
}

function acls(main) {
  const user = h("input", { type: "search", placeholder: "User ( / )", "aria-label": "User", oninput: later(300, () => load()), value: sessionStorage.getItem("acl-user") || "" });
  sessionStorage.removeItem("acl-user");
  const resource = h("input", { type: "search", placeholder: "Rules that apply to a resource, such as topic:orders", "aria-label": "Resource", oninput: later(300, () => load()) });
  const load = page(main, "acls", [h("div", { class: "grow" }, user), h("div", { class: "grow" }, resource), h("button", { class: "primary", onclick: add }, "Add rule")], async () => {
    const found = await get("/api/access/acls", { user: user.value.trim(), resource: resource.value.trim() });
    return [table(["resource", "user", "permission", "operation", "from", ""], found.acls.map((each) => [each.resource, each.principal.replace(/^User:/, ""),
      h("span", { class: each.permission === "deny" ? "bad" : "" }, each.permission), each.operation, each.host === "*" ? "any address" : each.host,
      small("Delete", () => remove(each), true)]), "no rules: without a rule, only super users have rights"), more(found, found.acls)];
  });

  function add() {
    ask("Add an access rule", [{ name: "user", label: "User (* is every user)", required: true, value: user.value.trim() },
      { name: "permission", label: "Permission", options: [["allow", "allow"], ["deny", "deny"]] }, { name: "operation", label: "Operation", options: OPERATIONS },
      { name: "resource", label: `${RESOURCE} (a name that ends in * is a prefix)`, required: true }, { name: "host", label: "From this address (empty: any)" }], {
      button: "Add", send: async (values) => {
        const done = await post("/api/change/acl", values);
        toast(done.warning || "the rule was added", Boolean(done.warning));
        load();
      },
    });
  }

  function remove(each) {
    ask("Delete this rule?", [], { button: "Delete", danger: true,
      note: `${each.permission} ${each.operation} on ${each.resource} for ${each.principal}`,
      send: async () => { await post("/api/change/delete-acl", { acl: each }); toast("the rule was deleted"); load(); } });
  }
}

function roles(main) {
  let names = ["reader", "writer", "owner", "admin"].map((each) => [each, each]);
  const load = page(main, "roles", [h("div", { class: "grow" }), h("button", { onclick: define }, "Define a role"), h("button", { class: "primary", onclick: grant }, "Grant a role")], async () => {
    const found = await get("/api/access/roles");
    names = found.roles.map((each) => [each.role, each.role]);
    return [h("h2", {}, "Who has which role"),
      table(["user", "role", "on", "from", ""], found.assignments.map((each) => [each.user, each.role, each.resource, each.host === "*" ? "any address" : each.host,
        small("Revoke", () => revoke(each), true)]), "no user has a role yet"), more(found, found.assignments),
      h("h2", {}, "Roles"), table(["role", "grants", ""], found.roles.map((each) => [each.role, each.grants.join("; "),
        each.built_in ? h("span", { class: "soft" }, "built in") : small("Delete", () => remove(each.role), true)]))];
  });

  function grant() {
    ask("Grant a role", [{ name: "user", label: "User", required: true }, { name: "role", label: "Role", options: names },
      { name: "resource", label: "Resource, such as topic:orders.* or any:billing.* (empty for admin)" }, { name: "host", label: "From this address (empty: any)" }], {
      button: "Grant", send: async (values) => { await post("/api/change/grant-role", values); toast(`${values.user} has the role ${values.role}`); load(); },
    });
  }

  function revoke(each) {
    ask(`Revoke ${each.role} from ${each.user}?`, [], { button: "Revoke", danger: true, note: each.resource || "",
      send: async () => { await post("/api/change/revoke-role", { ...each, resource: each.resource || "" }); toast("the role was revoked"); load(); } });
  }

  function define() {
    ask("Define a role, or replace it", [{ name: "role", label: "Name", required: true },
      { name: "grants", label: "Grants, one per line: topic=read,describe or topic:__audit=read", kind: "textarea" }], {
      button: "Define", note: "A grant without a name applies to the resource on which the role is granted. If you replace a role, its users get the new rights.",
      send: async (values) => {
        await post("/api/change/role", { role: values.role, grants: values.grants.split("\n").map((each) => each.trim()).filter(Boolean) });
        toast(`role ${values.role} was defined`);
        load();
      },
    });
  }

  function remove(role) {
    ask(`Delete the role ${role}?`, [], { button: "Delete", danger: true, send: async () => { await post("/api/change/delete-role", { role }); toast(`role ${role} was deleted`); load(); } });
  }
}

function quotas(main) {
  let keys = [["producer_byte_rate", "producer_byte_rate"]];
  const load = page(main, "quotas", [h("div", { class: "grow soft" }, "A limit applies to each broker separately."), h("button", { class: "primary", onclick: add }, "Set a quota")], async () => {
    const found = await get("/api/access/quotas");
    keys = [...found.keys, ...found.ip_keys].map((each) => [each, each]);
    return [table(["for", "quota", ">limit", ""], found.quotas.map((each) => [each.shown, each.key, count(each.limit),
      small("Delete", () => remove(each), true)]), "no quotas: no client is throttled"), more(found, found.quotas),
      h("div", { class: "soft" }, `${found.fair_sharing} (an overloaded broker gives each user an equal share)`)];
  });

  function add() {
    ask("Set a quota", [{ name: "user", label: "User (\"default\": all users without a quota of their own)" }, { name: "client-id", label: "Client id" },
      { name: "ip", label: "Address" }, { name: "key", label: "Quota", options: keys }, { name: "limit", label: "Limit per second", required: true, inputmode: "decimal" }], {
      button: "Set", send: async (values) => {
        const limit = Number(values.limit);
        if (!values.limit.trim() || !Number.isFinite(limit)) throw new Error("the limit must be a number");
        await post("/api/change/quota", { entity: { user: values.user.trim(), "client-id": values["client-id"].trim(), ip: values.ip.trim() }, key: values.key, limit });
        toast("the quota was set");
        load();
      },
    });
  }

  function remove(each) {
    ask("Delete this quota?", [], { button: "Delete", danger: true, note: `${each.key} of ${each.shown}`,
      send: async () => { await post("/api/change/delete-quota", { entity: each.entity, key: each.key }); toast("the quota was deleted"); load(); } });
  }
}

function check(main) {
  const input = (label, value = "") => h("input", { "aria-label": label, placeholder: label, value });
  const user = input("User");
  const operation = h("select", { "aria-label": "Operation" }, OPERATIONS.map(([value, text]) => h("option", { value }, text)));
  const resource = input("Resource, such as topic:orders");
  const host = input("Address (empty: any)");
  const answer = h("div", { class: "panel", id: "access-answer" }, h("p", { class: "soft" }, "Shows whether a user may do something, and which rule decides."));
  const form = h("form", { class: "bar" }, user, operation, h("div", { class: "grow" }, resource), host, h("button", { class: "primary", type: "submit" }, "Check"));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      const found = await post("/api/read/access", { user: user.value.trim(), operation: operation.value, resource: resource.value.trim(), host: host.value.trim() });
      const roles = found.roles.length ? ` (role ${found.roles.join(", ")})` : "";
      fill(answer, h("p", {}, h("b", { class: found.allowed ? "fine" : "bad" }, found.allowed ? "yes" : "no"), `: ${found.reason}${roles}`));
    } catch (error) { fill(answer, h("p", { class: "error" }, error.message)); }
  });
  main.append(form, answer);
}
