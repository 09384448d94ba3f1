// Buttons: each asks the API for what it says in data-act, once, and tells what came of it.

const sure = document.getElementById("sure");
const told = document.getElementById("told");

// Random, where randomUUID is only to be had on https and localhost.
function key() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

function tell(text, tone) {
  const line = document.createElement("p");
  line.textContent = text;
  line.className = tone;
  told.append(line);
  setTimeout(() => line.remove(), 8000);
}

// Asks whether it is meant; resolves to the reason that was given, or to null if it is not.
function confirmed(button) {
  const { sure: question, why } = button.dataset;
  if (!question) {
    return Promise.resolve("");
  }
  const text = sure.querySelector("textarea");
  document.getElementById("sure-what").textContent = question;
  document.getElementById("sure-label").hidden = !why;
  document.querySelector("#sure-label span").textContent = why;
  sure.querySelector("button.act").textContent = button.textContent;
  text.value = "";
  sure.returnValue = "no";
  sure.showModal();
  return new Promise((resolve) => {
    sure.addEventListener("close", () => resolve(sure.returnValue === "yes" ? text.value.trim() : null), { once: true });
  });
}

async function act(button) {
  const reason = await confirmed(button);
  if (reason === null) {
    return;
  }
  const [method, address] = button.dataset.act.split(" ");
  const body = { ...JSON.parse(button.dataset.body || "{}"), ...(reason ? { reason } : {}) };
  button.disabled = true;
  try {
    const headers = { "Content-Type": "application/json", "Idempotency-Key": key() };
    const answer = await fetch(address, { method, headers, body: JSON.stringify(body) });
    const said = await answer.json().catch(() => ({}));
    tell(answer.ok ? `${button.textContent}: done.` : (said.detail ?? `It failed (${answer.status}).`), answer.ok ? "good" : "bad");
  } catch {
    tell("The server does not answer. Nothing may have happened: look before you try again.", "bad");
  } finally {
    button.disabled = false;
    document.dispatchEvent(new Event("keptwork:done"));
  }
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-act]");
  if (button) {
    act(button);
  }
});

document.querySelector("[data-sign-out]")?.addEventListener("click", async () => {
  await fetch("/ui/session", { method: "DELETE" });
  location.assign("/ui/login");
});
