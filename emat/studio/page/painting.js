// The dialog around the editor: a photo that becomes an example, or a result that is corrected.

import {$, Problem, ask, say} from "/dom.js";
import {Editor, unpack} from "/editor.js";

const SAVE_AFTER = 400, ASK_AGAIN = 500;
const HINTS = {
  false: "What you leave out counts as not belonging to any class. Switch off to count only what you paint.",
  true: "A few strokes are enough: only what you painted counts. Paint some background too.",
};

export class Painting {
  constructor({act, show, path, state, constants}) {
    Object.assign(this, {act, show, path, state, constants});
    this.dialog = $("#editor");
    this.editor = new Editor($("#editor-body"));
    this.subject = null;  // {kind: "drafts" or "photos", key, name}
    this.dialog.addEventListener("keydown", event => { if (this.editor.key(event)) event.preventDefault(); });
    this.dialog.addEventListener("keyup", event => this.editor.keyUp(event));
    this.dialog.addEventListener("cancel", event => { event.preventDefault(); this.close(); });
    $("#editor-close").addEventListener("click", () => this.close());
    $("#editor-done").addEventListener("click", () => this.done());
    $("#editor-negative").addEventListener("click", () => this.negative());
    $("#editor-leave").addEventListener("click", () => this.leave());
    $("#sparse").addEventListener("change", event => this.setSparse(!event.target.checked));
  }

  async draft(key) {
    const draft = this.state().drafts.find(each => each.key === key);
    if (draft) await this.open({kind: "drafts", ...draft});
  }

  async example(index) {
    const answer = await this.act("edit-example", {index});
    if (answer) await this.draft(answer.draft);
  }

  async correct(photo) { await this.open({kind: "photos", ...photo}); }

  async open(subject) {
    if (!this.state().classes.length) { say("Name at least one class in step 1 first."); return $("#class-name").focus(); }
    this.subject = subject;
    const isDraft = subject.kind === "drafts", waiting = this.state().drafts.length - 1;
    $("#editor-title").textContent = isDraft ? `Paint ${subject.name}${waiting > 0 ? `, ${waiting} more waiting` : ""}` : `Correct ${subject.name}`;
    $("#editor-done").textContent = isDraft ? "Add example" : "Learn from this";
    $("#editor-leave").textContent = isDraft ? "Skip this photo" : "Cancel";
    $("#sparse-box").hidden = !isDraft || !this.state().learns;
    this.showSparse(isDraft && subject.sparse);
    this.problem("");
    if (!this.dialog.open) this.dialog.showModal();
    try {
      const base = `/api/${this.state().session}/${subject.kind}/${subject.key}`;
      const [photo, packed] = await Promise.all([picture(`${base}/photo.png`), ask(`${base}/labels`).then(answer => answer.arrayBuffer())]);
      const labels = await unpack(packed);
      if (this.subject !== subject) return;
      const {canClick, whyNoClicks} = this.constants();
      this.editor.open({photo, labels, width: subject.width, height: subject.height, classes: this.state().classes, whyNoClicks,
        click: canClick ? prompt => this.click(base, prompt) : null, changed: () => this.changed()});
      this.editor.canvas.focus();
      if (canClick) this.waitForClicks(base, subject);
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
      if (ready) { if (!first && !this.editor.outline) this.editor.say("Ready: click an object to outline it."); return; }
      if (!this.editor.outline) this.editor.say("Preparing the photo for clicks …");
      await new Promise(resolve => setTimeout(resolve, ASK_AGAIN));
    }
  }

  async click(base, prompt) { return unpack(await (await ask(`${base}/click`, {method: "POST", json: prompt})).arrayBuffer()); }

  changed() {
    this.problem("");
    if (this.subject?.kind !== "drafts") return;
    clearTimeout(this.saving);
    this.saving = setTimeout(() => this.send("keep").catch(() => {}), SAVE_AFTER);
  }

  async send(then) {
    clearTimeout(this.saving);
    const {kind, key} = this.subject;
    return ask(this.path(`${kind}/${key}/paint?then=${then}`), {method: "POST", body: await this.editor.png()});
  }

  showSparse(sparse) {
    $("#sparse").checked = !sparse;
    $("#sparse-hint").textContent = HINTS[sparse];
  }

  async setSparse(sparse) {
    this.showSparse(sparse);
    await this.act("sparse", {key: this.subject.key, value: sparse});
  }

  async done() {
    if (this.editor.outline) this.editor.accept();  // what is outlined was meant
    const isDraft = this.subject.kind === "drafts";
    await this.busily($("#editor-done"), async () => {
      this.show((await (await this.send(isDraft ? "example" : "correct")).json()).state);
      this.next();
    });
  }

  async negative() {
    if (this.subject.kind === "photos") {
      this.editor.clear();
      return this.done();
    }
    await this.busily($("#editor-negative"), async () => { if (await this.act("negative", {key: this.subject.key})) this.next(); });
  }

  async leave() {
    if (this.subject.kind === "drafts" && !await this.act("skip-draft", {key: this.subject.key})) return;
    this.subject.kind === "drafts" ? this.next() : this.close();
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
    const [draft] = this.subject.kind === "drafts" ? this.state().drafts : [];
    draft ? this.draft(draft.key) : this.close(false);
  }

  close(keep = true) {
    if (this.editor.outline && keep) return this.editor.discard();
    if (keep && this.saving && this.subject?.kind === "drafts") this.send("keep").catch(() => {});
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
