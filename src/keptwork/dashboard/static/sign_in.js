// Signing in: the key goes to the server once, in a header, and comes back as a cookie that no script can read.

const form = document.getElementById("sign-in");
const wrong = document.getElementById("wrong");

async function signIn(key) {
  wrong.textContent = "";
  const answer = await fetch("/ui/session", { method: "POST", headers: { Authorization: `Bearer ${key}` } });
  if (answer.ok) {
    location.replace(form.dataset.next);
  } else {
    const told = await answer.json().catch(() => ({}));
    wrong.textContent = answer.status === 401 ? "This key is not known, or is no longer good." : told.detail;
  }
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  signIn(form.key.value.trim());
});

// `keptwork dev` shows an address that ends in #token=…; what stands behind # is never sent by itself, nor logged.
const token = new URLSearchParams(location.hash.slice(1)).get("token");
if (token) {
  history.replaceState(null, "", location.pathname + location.search);
  signIn(token);
}
