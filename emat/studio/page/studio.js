// The page: it shows the session's state and sends what the user does. Everything that is computed is the server's.

import {$, Problem, ask, dropZone, h, keyed, percent, say} from "/dom.js";
import {Measure} from "/measure.js";
import {Painting} from "/painting.js";
import {Results} from "/results.js";
import {Stacks} from "/stacks.js";

const KEY = "emat-studio", POLL = 400, DRAW_EVERY = 250;
const BUSY = ["learning", "looking", "refining"];
let state = null, constants = null, polling = 0, drawnAt = 0;
let opened = null;  // resolves when the page has its session; whoever is quicker than that waits

const get = async path => (await ask(path)).json();
const results = new Results({act, get, correct: (photo, place) => painting.correct(photo, place)});
const measure = new Measure(() => `/api/${state.session}`);
results.shown = photo => measure.show(state, photo).catch(complain);
const painting = new Painting({act, show, path, state: () => state, constants: () => constants, fetchClicks});
const stacks = new Stacks({act, state: () => state, follow, opened: key => results.chooseStack(key)});

// ---- State

// Take over what the server says, without drawing it. Photos that did not change are not sent again.
function take(next) {
  const known = state?.session === next.session ? state : null;
  if (known && next.revision < known.revision) return;  // an older answer came late
  const photos = new Map(known?.photos.map(photo => [photo.key, photo]));
  for (const photo of next.photos) photos.set(photo.key, photo);
  state = {...next, photos: next.keys.map(key => photos.get(key))};
  clearTimeout(polling);
  if (BUSY.includes(state.search.phase)) polling = setTimeout(poll, POLL);
}

function show(next) {
  take(next);
  drawnAt = performance.now();
  showClasses();
  showDrafts();
  showExamples();
  showForecast();
  showUndo();
  results.show(state);
  showExport();
  stacks.show();
  $("#demo").hidden = !state.empty;
  $("#start-over").hidden = state.empty;
  if (!state.empty) $("#saved").hidden = true;
}

// The address of something in this session; answers leave out what this page knows already.
function path(rest) { return `/api/${state.session}/${rest}${rest.includes("?") ? "&" : "?"}since=${state.revision}`; }

async function poll() {
  try {
    const next = await get(path("state"));
    if (next.unchanged) polling = setTimeout(poll, POLL);
    else show(next);
  } catch (error) {
    complain(error);
    if (error.status === 0) polling = setTimeout(poll, 5000);
  }
}

// Show how far something is that takes a while, until what is returned is called.
function follow() {
  const timer = setInterval(async () => { const next = await get(path("state")).catch(() => ({unchanged: true})); if (!next.unchanged) show(next); }, POLL);
  return () => clearInterval(timer);
}

// Do what a button says. Resolves to the answer, or to null after what went wrong was said.
async function act(name, values = {}) {
  await opened;
  if (!state) return null;  // why there is no session was said
  try {
    const {answer, state: next} = await (await ask(path(`act/${name}`), {method: "POST", json: values})).json();
    show(next);
    for (const problem of answer.problems ?? []) say(problem, "problem");
    return answer;
  } catch (error) {
    complain(error);
    return null;
  }
}

function complain(error) {
  if (!(error instanceof Problem)) throw error;
  say(error.message, "problem");
}

async function open(session) {
  const answer = await (await ask("/api/session", {method: "POST", json: {session}})).json();
  constants = answer;
  results.canRefine = answer.canClick;
  sessionStorage.setItem(KEY, answer.session);  // belongs to this tab and outlives a reload
  state = null;
  showParts();
  show(answer);
  if (answer.empty && !answer.private) showSaved();
}

// Download what clicks need; `tell` is called with how far it is.
async function fetchClicks(tell) {
  if (!await act("fetch-mobilesam")) return;
  for (let now; ; await new Promise(resolve => setTimeout(resolve, POLL))) {
    now = await get(path("mobilesam"));
    Object.assign(constants, now);
    results.canRefine = now.canClick;
    if (!now.runs) {
      tell(now.canClick ? "Clicks are ready." : now.problem || "The download did not work; try again.");
      results.sliderStamp = null;
      return show(state);
    }
    tell(now.total ? `Downloading MobileSAM: ${Math.round(now.done / 1e6)} of ${Math.round(now.total / 1e6)} MB` : "Downloading MobileSAM …");
  }
}

// ---- Earlier sessions

async function showSaved() {
  const saved = (await get("/api/saved")).filter(each => each.id !== state.session);
  const box = $("#saved");
  box.hidden = !saved.length;
  const count = (number, word) => `${number} ${word}${number === 1 ? "" : "s"}`;
  box.replaceChildren(h("h2", {}, "Continue where you left off"), h("ul", {}, saved.map(each => h("li", {},
    h("button", {type: "button", class: "open-saved", onclick: () => open(each.id).catch(complain)},
      h("b", {}, each.classes.join(", ") || "no class yet"),
      h("span", {class: "quiet"}, `${count(each.examples, "example")}, ${count(each.photos, "photo")}, ${new Date(1000 * each.changed).toLocaleString()}`)),
    h("button", {type: "button", class: "cross", title: "Delete for good", "aria-label": `Delete the session with ${each.classes.join(", ") || "no class"}`, onclick: async () => {
      if (!confirm("Delete this session and its photos for good?")) return;
      await ask(`/api/saved/${each.id}`, {method: "DELETE"}).catch(complain);
      showSaved();
    }}, "×")))));
}

// ---- Step 1

function showClasses() {
  const stamp = JSON.stringify(state.classes.map(each => [each.name, each.number]));
  if ($("#classes").dataset.stamp === stamp) return;
  $("#classes").dataset.stamp = stamp;
  $("#classes").replaceChildren(state.classes.length ? h("ul", {class: "chips"}, state.classes.map(each =>
    h("li", {class: "chip", style: {"--colour": each.colour}}, h("i"),
      h("button", {type: "button", class: "chip-name", title: `Rename ${each.name}`, onclick: event => rename(event.currentTarget, each)}, each.name),
      h("button", {type: "button", class: "cross", "aria-label": `Remove ${each.name}`, title: `Remove ${each.name}`,
        onclick: () => act("remove-class", {number: each.number})}, "×"))))
    : h("p", {class: "empty"}, "No class yet. Name what you want to find, such as ", h("em", {}, "cat"), " or ", h("em", {}, "rust"), "."));
}

// Let a class be renamed in its place: Enter or leaving the field keeps the name, Escape does not.
function rename(button, each) {
  const field = h("input", {value: each.name, "aria-label": `New name of ${each.name}`, size: Math.max(4, each.name.length)});
  let isDone = false;
  const finish = async keeps => {
    if (isDone) return;
    isDone = true;
    $("#classes").dataset.stamp = "";
    if (!keeps || field.value === each.name || !await act("rename-class", {number: each.number, text: field.value})) show(state);
  };
  field.addEventListener("keydown", event => { if (event.key === "Enter" || event.key === "Escape") { event.preventDefault(); finish(event.key === "Enter"); } });
  field.addEventListener("blur", () => finish(true));
  button.replaceWith(field);
  field.select();
}

$("#class-form").addEventListener("submit", async event => {
  event.preventDefault();
  if (await act("add-classes", {text: $("#class-name").value})) $("#class-name").value = "";
});

// ---- Step 2

function showDrafts() {
  const box = $("#drafts");
  if (!state.drafts.length) return box.replaceChildren();
  if (!box.firstChild) box.append(h("p", {class: "quiet"}, "Waiting to be painted"), h("ul", {class: "cards small"}));
  keyed(box.querySelector("ul"), state.drafts, draft => draft.key, draft => [draft.name, draft.edits], draft => h("li", {class: "draft"},
    h("button", {type: "button", class: "card", onclick: () => painting.draft(draft.key)},
      h("img", {src: `/api/${state.session}/drafts/${draft.key}/small.jpg`, alt: "", loading: "lazy"}),
      h("span", {class: "card-text"}, h("b", {}, draft.name), h("span", {class: "quiet"}, draft.edits === null ? "Paint" : "Edited, not saved"))),
    h("button", {type: "button", class: "cross", "aria-label": `Skip ${draft.name}`, title: "Skip", onclick: () => act("skip-draft", {key: draft.key})}, "×")));
}

function showExamples() {
  const box = $("#examples");
  if (!state.examples.length) {
    return box.replaceChildren(h("p", {class: "empty"}, "No example yet. Two or three photos of each class are a good beginning."));
  }
  if (!box.querySelector("ul")) box.replaceChildren(h("ul", {class: "cards small", "aria-label": "Examples"}));
  const stamp = example => JSON.stringify([example, state.examples.length, state.classes.map(each => [each.name, each.colour])]);
  keyed(box.querySelector("ul"), state.examples, example => example.index, stamp, exampleCard);
}

function exampleCard(example) {
  const shown = state.classes.filter(each => example.classes.includes(each.number));
  const last = state.examples.length - 1;
  const move = (by, text, words) => h("button", {type: "button", title: words, "aria-label": `${words}: ${example.name}`, onclick: () => act("move-example", {index: example.index, by})}, text);
  return h("li", {class: example.doubtful ? "example worst" : "example"},
    h("button", {type: "button", class: "card", title: "Edit this example", onclick: () => painting.example(example.index)},
      h("img", {src: `/api/${state.session}/examples/${example.index}/small.jpg?${example.stamp}`, alt: ""}),
      h("span", {class: "card-text"}, h("b", {}, example.name),
        shown.length ? h("span", {class: "dots"}, shown.map(each => h("span", {style: {"--colour": each.colour}}, h("i"), each.name)))
          : h("span", {class: "quiet"}, example.sparse ? "not this" : "none of the classes"),
        example.sparse && h("span", {class: "quiet"}, shown.length ? "scribbles" : "regions without any class"),
        example.iou !== null && h("span", {class: "iou", title: `Found from the other examples alone, ${percent(example.iou)} of its mask and of what was found are the same (IoU ${example.iou.toFixed(2)}; 1 is perfect).`},
          `found by the others: ${example.word} `, h("small", {}, example.iou.toFixed(2))),
        example.doubtful && h("span", {class: "mark"}, "agrees least with the others; check its mask"))),
    h("span", {class: "moves"}, example.index > 0 && move(-1, "‹", "Move forward"), example.index < last && move(1, "›", "Move back")),
    h("button", {type: "button", class: "cross", "aria-label": `Remove the example ${example.name}`, title: "Remove",
      onclick: () => act("remove-example", {index: example.index})}, "×"));
}

// The last change of the examples can be taken back; what a correction did is shown beside the photos.
function showUndo() {
  const {earlier} = state, box = $("#undo"), isHere = earlier && !earlier.corrected;
  box.hidden = !isHere;
  if (!isHere) return box.replaceChildren();
  if (box.dataset.what === earlier.what && box.firstChild) return;
  box.dataset.what = earlier.what;
  box.replaceChildren(h("span", {class: "quiet"}, `${earlier.what}.`), h("button", {type: "button", id: "undo-examples", onclick: () => act("step-back")}, "Undo"));
}

function showForecast() {
  const box = $("#forecast"), stamp = JSON.stringify([state.forecast, state.forecastIsCurrent, state.classes.map(each => each.colour)]);
  if (box.dataset.stamp === stamp) return;
  box.dataset.stamp = stamp;
  box.hidden = !state.forecast.length;
  box.classList.toggle("stale", !state.forecastIsCurrent);
  const colours = new Map(state.classes.map(each => [each.name, each.colour]));
  const bar = (what, title, value, word) => h("div", {class: "expectation-bar", title}, h("span", {}, what),
    h("b", {}, word, value !== null && h("small", {}, ` ${value.toFixed(2)}`)),
    h("span", {class: "bar"}, h("i", {style: {width: `${100 * (value ?? 0)}%`}})));
  $("#expectations").replaceChildren(...state.forecast.map(each => h("div", {class: "expectation", style: {"--colour": colours.get(each.name) ?? "gray"}},
    h("h3", {}, h("i"), each.name), bar("Masks", "Share of overlap between a mask and the truth on photos that it had not seen (IoU; 1 is perfect)", each.iou, each.word),
    bar("Presence", "Share of the photos that it had not seen on which it is right about whether the class is there", each.presence, each.presenceWord),
    each.advice && h("p", {class: "quiet"}, each.advice))));
}

// ---- Files

async function upload(files, to, progress) {
  await opened;
  if (!state) return false;
  let done = 0, failed = 0;
  for (const file of files) {  // one after the other, so that photos are listed in the order in which they were dropped
    progress.textContent = files.length > 1 ? `Reading ${done + 1} of ${files.length}` : `Reading ${file.name}`;
    try {
      const answer = await ask(path(`upload?to=${to}&name=${encodeURIComponent(file.name)}`), {method: "POST", body: file});
      const {state: next} = await answer.json();
      performance.now() - drawnAt > DRAW_EVERY ? show(next) : take(next);
    } catch (error) {
      failed++;
      complain(error);
      if (error.status === 0 || error.status === 410) break;
    }
    done++;
  }
  progress.textContent = "";
  show(state);
  return failed < files.length;
}

dropZone($("#draft-files"), async files => {
  const fitted = files.find(file => file.name.endsWith(".emat"));
  if (fitted) return upload([fitted], "fitted", $("#draft-progress"));
  await opened;
  const before = new Set(state?.drafts.map(draft => draft.key));
  if (!await upload(files, "examples", $("#draft-progress"))) return;
  await stacks.decided();  // its planes come first, so that masks find them
  await act("sort-drop");
  const first = state.drafts.find(draft => !before.has(draft.key));
  if (first && state.classes.length) painting.draft(first.key);
  else if (first) { say("Name at least one class in step 1, then choose the photo to paint it."); $("#class-name").focus(); }
});
dropZone($("#photo-files"), files => upload(files, "photos", $("#photo-progress")));
$("#open-file").addEventListener("click", () => $("#fitted-file").click());
$("#fitted-file").addEventListener("change", event => { const files = [...event.target.files]; event.target.value = ""; upload(files, "fitted", $("#draft-progress")); });
// A file that misses the zones must not replace the page.
for (const name of ["dragover", "drop"]) document.addEventListener(name, event => event.preventDefault());

// ---- Step 4

function showParts() {
  $("#parts").replaceChildren($("#parts legend"), ...Object.entries(constants.parts).map(([part, text]) =>
    h("label", {}, h("input", {type: "checkbox", name: "part", value: part, checked: ["png", "scores", "objects"].includes(part), onchange: showExport}), text)));
}

function showExport() {
  const parts = chosenParts();
  disable($("#export"), state.cannotExport || (parts.length ? "" : "Choose what to put into the zip file"));
  disable($("#save"), state.cannotSave);
}

// A button that cannot be used says why, to the mouse and to screen readers; it stays in the order of focus for that.
function disable(button, reason) {
  button.setAttribute("aria-disabled", String(Boolean(reason)));
  button.title = reason;
}

function chosenParts() { return [...document.querySelectorAll("[name=part]:checked")].map(input => input.value); }

async function download(button, parts) {
  if (button.getAttribute("aria-disabled") === "true") return say(`${button.title}.`);
  button.classList.add("busy");
  try {
    const {url, name} = await (await ask(`/api/${state.session}/export`, {method: "POST", json: {parts, objects: results.objects}})).json();
    const link = h("a", {href: url, download: name});
    document.body.append(link);
    link.click();
    link.remove();
  } catch (error) {
    complain(error);
  } finally {
    button.classList.remove("busy");
  }
}

$("#open-report").addEventListener("click", async event => {  // verdicts are tried on examples that are left out, which takes a while
  const button = event.currentTarget;
  button.classList.add("busy");
  try {
    const page = URL.createObjectURL(await (await ask(`/api/${state.session}/report.html`)).blob());
    $("#report-link").replaceChildren(h("a", {href: page, target: "_blank"}, "Open the report"));
  } catch (error) {
    complain(error);
  } finally {
    button.classList.remove("busy");
  }
});
$("#export").addEventListener("click", event => download(event.currentTarget, chosenParts()));
$("#save").addEventListener("click", event => download(event.currentTarget, ["emat"]));
$("#demo").addEventListener("click", async event => { event.currentTarget.classList.add("busy"); await act("demo"); $("#demo").classList.remove("busy"); });
$("#start-over").addEventListener("click", () => { if (confirm("Forget all classes, examples and photos of this tab?")) act("start-over"); });

opened = open(sessionStorage.getItem(KEY)).catch(complain);
