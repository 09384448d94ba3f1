// Keeps a page up to date: the server makes it anew, and what has changed is put in its place.

const SECOND = 1000;
const main = document.getElementById("main");
const how = main.dataset.live;
let asking = false;
let again = false;
let source = null;
let shown = "";

// Not while somebody reads a selection, types, or is about to decide something.
function busy() {
  const typing = main.contains(document.activeElement) && document.activeElement.matches("input, textarea, select");
  return document.hidden || typing || reading() || !getSelection().isCollapsed || document.querySelector("dialog[open]") !== null;
}

// A list that grows at its top stands still while somebody has scrolled down in it.
function reading() {
  return scrollY > 0 && main.querySelector("[data-follow]") !== null;
}

addEventListener("scroll", () => document.body.classList.toggle("still", reading()), { passive: true });

export async function refresh() {
  if (asking) {
    again = true;
    return;
  }
  asking = true;
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
    if (answer.redirected) {
      location.reload();
    } else if (answer.ok) {
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      main.matches(":active") ? soon() : show(page); // what is taken away while it is pressed is never clicked
    }
    document.body.classList.toggle("away", !answer.ok);
  } catch {
    document.body.classList.add("away");
  } finally {
    asking = false;
    if (again) {
      again = false;
      soon();
    }
  }
}

// How to find again what has the focus: by its id, or as the n-th that leads or asks for the same.
function whereFocused() {
  const one = document.activeElement;
  const { id, dataset } = one;
  const same = id ? `#${CSS.escape(id)}` : dataset.act ? `[data-act="${CSS.escape(dataset.act)}"]` : `[href="${CSS.escape(one.getAttribute("href"))}"]`;
  const place = [...main.querySelectorAll(same)].indexOf(one);
  return () => main.querySelectorAll(same)[place];
}

function show(page) {
  const open = new Set([...main.querySelectorAll("details[id][open]")].map((one) => one.id));
  const focused = whereFocused();
  const scrolled = new Map([...main.querySelectorAll(".scroll[id]")].map((one) => [one.id, [one.scrollLeft, one.scrollTop]]));
  const fresh = page.getElementById("main");
  if (fresh.innerHTML === shown) {
    return;
  }
  shown = fresh.innerHTML;
  main.replaceChildren(...fresh.childNodes);
  main.querySelectorAll("details[id]").forEach((one) => (one.open ||= open.has(one.id)));
  scrolled.forEach(([left, top], id) => document.getElementById(id)?.scrollTo(left, top));
  focused()?.focus({ preventScroll: true });
  document.title = page.title;
}

let waiting = null;

function soon() {
  waiting ??= setTimeout(() => {
    waiting = null;
    busy() ? soon() : refresh();
  }, SECOND / 2);
}

// A hidden tab neither asks nor listens: a browser has few connections to one server.
function listen() {
  if (document.hidden) {
    source?.close();
    source = null;
  } else if (source === null) {
    source = new EventSource(how);
    main.dataset.types.split(" ").forEach((type) => source.addEventListener(type, soon));
    source.addEventListener("error", () => document.body.classList.add("away"));
    source.addEventListener("open", () => document.body.classList.remove("away"));
    soon();
  }
}

if (how.startsWith("every ")) {
  setInterval(() => busy() || refresh(), Number(how.slice(6)) * SECOND);
} else if (how) {
  document.addEventListener("visibilitychange", listen);
  addEventListener("pagehide", () => source?.close());
  listen();
  // How far something has come, and when it was last heard of, is in no event: a page that shows it says so.
  setInterval(() => main.querySelector("[data-moves]") === null || busy() || refresh(), 2 * SECOND);
}

document.addEventListener("keptwork:done", refresh);
