// The sign-in form. Users of the cluster sign in with their names and passwords, or at a provider.
import { h } from "./dom.js";

// Shows the form. Returns what the user filled in, and a function that closes the form: it stays open
// until the console has answered, because before that no page works. `answer` says what the console
// offers, `error` why the last attempt failed.
export function signIn(answer, error) {
  return new Promise((resolve) => {
    const user = h("input", { name: "user", autocomplete: "username", required: true, autofocus: true });
    const password = h("input", { name: "password", type: "password", autocomplete: "current-password", required: true });
    const button = h("button", { class: "primary", type: "submit" }, "Sign in");
    const form = h("form", {}, h("h2", {}, "Sign in"),
      answer.passwords ? [h("p", { class: "soft" }, "Use your user name and password of the cluster."),
        h("label", {}, "User", user), h("label", {}, "Password", password)] : null,
      h("p", { class: "error", role: "alert" }, error),
      h("div", { class: "bar" }, answer.passwords ? button : null,
        answer.provider ? h("a", { class: "button", href: "/oauth/start" }, "Sign in with the provider") : null));
    const dialog = h("dialog", { id: "sign-in" }, form);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (button.disabled) return;
      button.disabled = true;
      button.textContent = "Signing in\u2026";
      resolve({ login: { user: user.value, password: password.value }, done: () => dialog.remove() });
    });
    // The Escape key closes a dialog. Browsers do not always let a page prevent that.
    dialog.addEventListener("close", () => { if (dialog.isConnected) dialog.showModal(); });
    document.body.append(dialog);
    dialog.showModal();
  });
}
