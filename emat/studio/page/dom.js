// Small things that the page is made of: elements, messages, requests and files.

// An element with attributes and children. Text is always text: names come from users.
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, each] of Object.entries(value)) element.style.setProperty(key, each);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter(child => child !== null && child !== undefined && child !== false));
  return element;
}

export const $ = selector => document.querySelector(selector);
export const percent = share => `${(100 * share).toFixed(share && share < 0.0995 ? 1 : 0)} %`;

export function say(text, kind = "note") {
  const message = h("div", {class: `message ${kind}`}, h("span", {}, text),
    h("button", {type: "button", class: "cross", "aria-label": "Dismiss", onclick: () => message.remove()}, "×"));
  const box = $("#messages");
  while (box.children.length > 3) box.firstChild.remove();
  box.append(message);
  setTimeout(() => message.remove(), 12000);
}

export class Problem extends Error { constructor(text, status) { super(text); this.status = status; } }

// Ask the server. What goes wrong comes back as a sentence.
export async function ask(path, {method = "GET", body, json} = {}) {
  let answer;
  try {
    answer = await fetch(path, {method, body: json ? JSON.stringify(json) : body});
  } catch {
    throw new Problem("The studio does not answer. Is it still running in its terminal?", 0);
  }
  if (!answer.ok) {
    const problem = await answer.json().then(content => content.problem, () => `The studio answered ${answer.status}.`);
    throw new Problem(problem, answer.status);
  }
  return answer;
}

// Files of a drop, those in folders included.
export async function filesOf(transfer) {
  const entries = [...transfer.items ?? []].map(item => item.webkitGetAsEntry?.()).filter(Boolean);
  if (!entries.length) return [...transfer.files];
  return (await Promise.all(entries.map(filesIn))).flat();
}

async function filesIn(entry) {
  if (entry.isFile) return [await new Promise((resolve, reject) => entry.file(resolve, reject))];
  const reader = entry.createReader(), found = [];
  for (let some; (some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject))).length;) found.push(...some);
  return (await Promise.all(found.filter(each => !each.name.startsWith(".")).map(filesIn))).flat();
}

// Let files be dropped on a label, or chosen with the input inside it.
export function dropZone(label, take) {
  const input = label.querySelector("input");
  input.addEventListener("change", () => { const files = [...input.files]; input.value = ""; if (files.length) take(files); });
  for (const name of ["dragenter", "dragover"])
    label.addEventListener(name, event => { event.preventDefault(); label.classList.add("over"); });
  for (const name of ["dragleave", "drop"]) label.addEventListener(name, () => label.classList.remove("over"));
  label.addEventListener("drop", async event => {
    event.preventDefault();
    const files = await filesOf(event.dataTransfer);
    if (files.length) take(files);
  });
}

// Make the children of `parent` those of `items`, and make again only those whose `stamp` has changed.
export function keyed(parent, items, keyOf, stampOf, make) {
  const old = new Map([...parent.children].map(child => [child.dataset.key, child]));
  let before = parent.firstElementChild;
  for (const item of items) {
    const key = String(keyOf(item)), stamp = String(stampOf(item));
    let child = old.get(key);
    old.delete(key);
    if (!child || child.dataset.stamp !== stamp) {
      const made = make(item);
      made.dataset.key = key;
      made.dataset.stamp = stamp;
      if (child) {
        const hadFocus = child.contains(document.activeElement);
        if (before === child) before = made;
        child.replaceWith(made);
        if (hadFocus) (made.matches("button") ? made : made.querySelector("button"))?.focus();
      }
      child = made;
    }
    if (child !== before) parent.insertBefore(child, before);
    before = child.nextElementSibling;
  }
  for (const child of old.values()) child.remove();
}
