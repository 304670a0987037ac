// The sign-in form. Users of the cluster sign in with their names and passwords.
import { h } from "./dom.js";

// Shows the form until the user has filled it in. `error` says why the last attempt failed.
export function signIn(error) {
  return new Promise((resolve) => {
    const user = h("input", { name: "user", autocomplete: "username", required: true, autofocus: true });
    const password = h("input", { name: "password", type: "password", autocomplete: "current-password", required: true });
    const form = h("form", {}, h("h2", {}, "Sign in"),
      h("p", { class: "soft" }, "Use your user name and password of the cluster."),
      h("label", {}, "User", user), h("label", {}, "Password", password),
      h("p", { class: "error", role: "alert" }, error),
      h("div", { class: "bar" }, h("button", { class: "primary", type: "submit" }, "Sign in")));
    const dialog = h("dialog", { id: "sign-in" }, form);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      dialog.remove();
      resolve({ user: user.value, password: password.value });
    });
    dialog.addEventListener("cancel", (event) => event.preventDefault());  // the Escape key
    document.body.append(dialog);
    dialog.showModal();
  });
}
