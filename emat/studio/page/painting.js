// The dialog around the editor: a photo that becomes an example, or a result that is corrected.

import {$, Problem, ask, say} from "/dom.js";
import {Editor, unpack} from "/editor.js";

const SAVE_AFTER = 400, ASK_AGAIN = 500;
const HINTS = {
  drafts: {
    true: "What you leave out counts as not belonging to any class. Switch off to count only what you paint.",
    false: "A few strokes are enough: only what you painted counts. Paint some background too.",
  },
  photos: {
    true: "The whole photo becomes an example as you see it.",
    false: "Only what you touch is learnt: your strokes, and the objects that they touch. Switch on if all else is right, too.",
  },
};

export class Painting {
  constructor({act, show, path, state, constants, fetchClicks}) {
    Object.assign(this, {act, show, path, state, constants, fetchClicks});
    this.dialog = $("#editor");
    this.editor = new Editor($("#editor-body"));
    this.subject = null;  // {kind: "drafts" or "photos", key, name}
    this.dialog.addEventListener("keydown", event => { if (this.editor.key(event)) event.preventDefault(); });
    this.dialog.addEventListener("keyup", event => this.editor.keyUp(event));
    this.dialog.addEventListener("cancel", event => { event.preventDefault(); this.editor.object ? this.editor.forget() : this.close(); });
    $("#editor-close").addEventListener("click", () => this.close());
    $("#editor-done").addEventListener("click", () => this.done());
    $("#editor-negative").addEventListener("click", () => this.negative());
    $("#editor-leave").addEventListener("click", () => this.leave());
    $("#sparse").addEventListener("change", event => this.setWhole(event.target.checked));
  }

  async draft(key) {
    const draft = this.state().drafts.find(each => each.key === key);
    if (draft) await this.open({kind: "drafts", ...draft});
  }

  async example(index) {
    const answer = await this.act("edit-example", {index});
    if (answer) await this.draft(answer.draft);
  }

  async correct(photo, place = null) { await this.open({kind: "photos", ...photo}, place); }

  // Open a photo, at a place that is given by shares of its sides.
  async open(subject, place = null) {
    if (!this.state().classes.length) { say("Name at least one class in step 1 first."); return $("#class-name").focus(); }
    this.subject = subject;
    const isDraft = subject.kind === "drafts", isNew = !isDraft && !subject.done && !subject.corrected, isEdited = isDraft && subject.edits !== null, waiting = this.state().drafts.length - 1;
    $("#editor-title").textContent = isNew ? `Paint ${subject.name}` : !isDraft ? `Correct ${subject.name}` : isEdited ? `Edit ${subject.name}`
      : `Paint ${subject.name}${waiting > 0 ? `, ${waiting} more waiting` : ""}`;
    $("#editor-done").textContent = !isDraft ? "Learn from this" : isEdited ? "Save" : "Add example";
    $("#editor-leave").textContent = isDraft && !isEdited ? "Skip this photo" : "Cancel";
    $("#editor-negative").textContent = isDraft ? "This photo shows none of my classes" : "None of these here";
    $("#sparse-box b").textContent = isDraft || isNew ? "Everything not painted is background" : "The rest is right";
    $("#sparse-box").hidden = !this.state().learns;
    this.showWhole(isDraft ? !subject.sparse : isNew || subject.whole || !this.state().learns);
    this.problem("");
    $("#editor-notice").textContent = subject.notice;
    if (!this.dialog.open) this.dialog.showModal();
    try {
      const base = `/api/${this.state().session}/${subject.kind}/${subject.key}`, layer = name => ask(`${base}/${name}`).then(answer => answer.arrayBuffer()).then(unpack);
      const [photo, labels, found] = await Promise.all([picture(`${base}/photo.png`), layer("labels"), isDraft ? null : layer("found")]);
      if (this.subject !== subject) return;
      const {canClick, whyNoClicks} = this.constants(), {width, height} = subject;
      this.editor.open({photo, labels, found, width, height, classes: this.state().classes, whyNoClicks, noClicks: () => this.offerClicks(),
        click: canClick ? prompt => this.click(base, prompt) : null, similar: () => this.similar(base), changed: () => this.changed(),
        place: place && {x: place.x * width, y: place.y * height}});
      this.editor.canvas.focus();
      if (canClick) this.waitForClicks(base, subject);
      // What is known already is proposed at once, so that the second photo is not painted from nothing.
      if (isDraft && !isEdited && this.state().examples.length && !labels.some(Boolean)) this.editor.findMore();
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      this.problem(error.message);
    }
  }

  problem(text) { $("#editor-problem").textContent = text; }

  // Clicks are answered at once when the photo is encoded, which goes on in the background.
  async waitForClicks(base, subject) {
    for (let first = true; this.subject === subject; first = false) {
      const {ready} = await (await ask(`${base}/ready`)).json();
      this.dialog.classList.toggle("preparing", !ready);
      const isQuiet = !this.editor.object && !this.editor.waiting && !this.editor.searching;
      if (ready) { if (!first && isQuiet) this.editor.say("Ready: click an object to outline it."); return; }
      if (isQuiet) this.editor.say("Preparing the photo for clicks …");
      await new Promise(resolve => setTimeout(resolve, ASK_AGAIN));
    }
  }

  // Clicking is not possible here yet: say why, and offer what it needs.
  async offerClicks() {
    const {editor, subject} = this, constants = this.constants();
    Object.assign(constants, await (await ask(this.path("mobilesam"))).json());
    if (constants.canClick) return this.beginClicks(subject);
    if (!constants.canFetch) return editor.say(`${constants.whyNoClicks}.`);
    editor.ask(`${constants.whyNoClicks}.`, [["Download (41 MB)", async () => {
      await this.fetchClicks(text => editor.say(text));
      if (constants.canClick) this.beginClicks(subject);
    }, true], ["Not now", () => {}]]);
  }

  beginClicks(subject) {
    if (this.subject !== subject) return;
    const base = `/api/${this.state().session}/${subject.kind}/${subject.key}`;
    this.editor.click = prompt => this.click(base, prompt);
    this.editor.useTool("click");
    this.waitForClicks(base, subject);
  }

  async click(base, prompt) { return unpack(await (await ask(`${base}/click`, {method: "POST", json: prompt})).arrayBuffer()); }

  // Objects that look like what is painted, here and in the examples. The answer has their number as two bytes, then
  // the class of each, then the number of the object at each pixel.
  async similar(base) {
    const data = await unpack(await (await ask(`${base}/similar`, {method: "POST", body: await this.editor.png()})).arrayBuffer());
    const count = data[0] + 256 * data[1], values = data.subarray(2, 2 + count);
    return {map: data.subarray(2 + count), items: [...values].map((value, index) => ({id: index + 1, value}))};
  }

  changed() {
    this.problem("");
    if (this.subject?.kind !== "drafts") return;
    clearTimeout(this.saving);
    this.saving = setTimeout(() => this.send("keep").catch(() => {}), SAVE_AFTER);
  }

  async send(then) {
    clearTimeout(this.saving);
    this.saving = null;
    const {kind, key} = this.subject, isWhole = kind === "photos" && $("#sparse").checked;
    const body = await (isWhole ? this.editor.wholePng() : this.editor.png());
    return ask(this.path(`${kind}/${key}/paint?then=${then}&whole=${isWhole ? 1 : 0}`), {method: "POST", body});
  }

  showWhole(whole) {
    $("#sparse").checked = whole;
    $("#sparse-hint").textContent = HINTS[this.subject.kind][whole];
  }

  async setWhole(whole) {
    this.showWhole(whole);
    if (this.subject.kind === "drafts") await this.act("sparse", {key: this.subject.key, value: !whole});
  }

  async done() {
    const {editor, subject} = this, open = editor.proposals?.open.size ?? 0, isDraft = subject.kind === "drafts";
    if (open) return editor.ask(`${open} proposed ${open === 1 ? "object is" : "objects are"} not decided yet.`, [
      ["Accept and go on", () => { editor.decideAll(true); this.finish(); }, true],
      ["Go on without", () => { editor.decideAll(false); this.finish(); }]]);
    await editor.clicks;  // a click that is not answered yet was meant, too
    if (!isDraft && !subject.done && !subject.corrected && !editor.undoable.length)
      return this.problem("Nothing is painted yet. Paint one of the classes, or choose “None of these here”.");
    if (!isDraft && !editor.undoable.length && !$("#sparse").checked)
      return this.problem("Nothing is corrected yet. Paint or click what is wrong, or switch on “The rest is right” if all of it is right.");
    await this.finish();
  }

  async finish() {
    const isDraft = this.subject.kind === "drafts";
    await this.busily($("#editor-done"), async () => {
      this.show((await (await this.send(isDraft ? "example" : "correct")).json()).state);
      this.next();
    });
  }

  async negative() {
    const {kind, key} = this.subject, name = kind === "drafts" ? "negative" : "none-here";
    await this.busily($("#editor-negative"), async () => { if (await this.act(name, {key})) this.next(); });
  }

  async leave() {
    const {kind, key} = this.subject;
    clearTimeout(this.saving);
    if (kind === "drafts" && !await this.act("skip-draft", {key})) return;
    kind === "drafts" ? this.next() : this.close(false);
  }

  async busily(button, work) {
    button.disabled = true;
    try {
      await work();
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      this.problem(error.message);
    } finally {
      button.disabled = false;
    }
  }

  next() {
    const [draft] = this.subject.kind === "drafts" && this.subject.edits === null ? this.state().drafts : [];
    draft ? this.draft(draft.key) : this.close(false);
  }

  close(keep = true) {
    const isDraft = this.subject?.kind === "drafts";
    if (keep && !isDraft && this.editor.undoable?.length)
      return this.editor.ask("This correction is not learnt yet.", [["Learn from it", () => this.done(), true], ["Throw it away", () => this.close(false)]]);
    if (keep && this.saving && isDraft) this.send("keep").catch(() => {});
    this.subject = null;
    this.editor.close();
    this.dialog.close();
  }
}

async function picture(address) {
  const image = new Image();
  image.src = address;
  await image.decode().catch(() => { throw new Problem("The photo did not arrive; reload the page."); });
  return image;
}
