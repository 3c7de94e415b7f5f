// The editor: paint classes on a photo with clicks, a brush and an eraser.
//
// The truth is `labels`, one byte for each pixel of the photo: 0 is not painted, 1 to 12 are classes, 254 is background
// and 255 is undecided. It never passes through a canvas on its way to the server, because some browsers change pixels
// there to protect privacy. The canvas only shows it. When a result is corrected, `found` lies below: the masks that were
// found. Only what the user touches gets into `labels`, so the eraser paints background there.
//
// A click paints the object at once, and the object stays active: a click inside adds to it, a click beside it begins the
// next. So nothing is ever pending. Every click is one step that can be undone.
//
//   const editor = new Editor(element);
//   editor.open({photo, width, height, labels, found, classes, click, similar, changed});
//   const png = await editor.png();

export const BACKGROUND = 254, UNDECIDED = 255;
const OPACITY = 0.55, FOUND_OPACITY = 0.4, MOST_STEPS = 100, DRAG = 5, DEEPEST = 40, NEAR = 3;
const HATCH = {[BACKGROUND]: [[20, 22, 28], [70, 74, 84]], [UNDECIDED]: [[245, 245, 245], [150, 150, 150]]};
const SPECIAL = [
  {value: BACKGROUND, name: "Background", key: "0", colour: "#14161c"},
  {value: UNDECIDED, name: "Undecided", key: "U", colour: "#c8c8c8"},
];
const COMMAND = /Mac|iPhone|iPad/.test(navigator.platform) ? "Cmd" : "Ctrl";
const ACTIVE = `Click inside to add, beside it for the next object. Shift-click takes away, ${COMMAND}+Z takes back.`;
const HINTS = {
  click: "Click one object after the other, or drag a box around one. Shift-click removes what is painted.",
  brush: "Drag to paint. The keys [ and ] change the size, shift-click removes a whole painted area.",
  eraser: "Drag to erase. The keys [ and ] change the size, shift-click removes a whole painted area.",
};
const MARKUP = `
  <div class="tools" role="toolbar" aria-label="Editing tools">
    <div class="group" role="group" aria-label="Tool">
      <button type="button" data-tool="click" title="Click an object to outline it (C)">Click</button>
      <button type="button" data-tool="brush" title="Paint (B)">Brush</button>
      <button type="button" data-tool="eraser" title="Erase (E)">Eraser</button>
    </div>
    <div class="group paints" role="group" aria-label="Paint"></div>
    <label class="group size">Size <input type="range" min="1" step="1" aria-label="Brush size in pixels of the photo">
      <output></output></label>
    <button type="button" data-do="similar" title="Find the other objects of this photo that look like those painted (M)">Find more like these</button>
    <div class="group" role="group" aria-label="History">
      <button type="button" data-do="undo" title="Undo (${COMMAND}+Z)" aria-label="Undo">↶</button>
      <button type="button" data-do="redo" title="Redo (${COMMAND}+Shift+Z)" aria-label="Redo">↷</button>
      <button type="button" data-do="clear" title="Remove all paint">Clear</button>
    </div>
    <div class="group" role="group" aria-label="Zoom">
      <button type="button" data-do="zoom-out" title="Zoom out (−)" aria-label="Zoom out">−</button>
      <button type="button" data-do="fit" title="Show the whole photo (F)" aria-label="Fit the whole photo">Fit</button>
      <button type="button" data-do="zoom-in" title="Zoom in (+)" aria-label="Zoom in">+</button>
    </div>
  </div>
  <div class="canvas-box">
    <canvas tabindex="0" role="application" aria-label="The photo. Arrow keys move the pointer, the space bar paints or clicks."></canvas>
  </div>
  <div class="below">
    <p class="status quiet" role="status"></p>
    <div class="object-actions" hidden>
      <button type="button" data-do="same" aria-pressed="false" title="Let every click add to this object, wherever it is (or hold ${COMMAND})">Same object</button>
      <button type="button" data-do="take" aria-pressed="false" title="Let clicks take away from the object, as shift-clicks do">Take away</button>
      <button type="button" data-do="erase" title="Erase inside the outline instead of painting it">Erase</button>
      <button type="button" data-do="forget" title="Remove this object (Escape)">Forget</button>
    </div>
    <div class="question" role="group" hidden></div>
  </div>`;

export class Editor {
  constructor(element) {
    this.element = element;
    element.editor = this;  // for tests, which look at the paint
    element.classList.add("editor");
    element.innerHTML = MARKUP;
    this.canvas = element.querySelector("canvas");
    this.screen = this.canvas.getContext("2d");
    this.slider = element.querySelector("input[type=range]");
    this.pointers = new Map();
    this.isOpen = false;
    this._listen();
  }

  // photo: an image that is loaded; found: the masks below the paint, or null; classes: [{name, number, colour, liesOn}];
  // click: prompt => Promise of a mask, or null when there are no clicks here (`whyNoClicks` says why, `noClicks` is called when one is wanted); similar: () =>
  // Promise of proposals, or null; changed: called whenever the paint has changed; place: {x, y} to look at.
  open({photo, width, height, labels, found = null, classes, click = null, whyNoClicks = "", noClicks = () => {}, similar = null, changed = () => {}, place = null}) {
    Object.assign(this, {photo, width, height, labels, found, classes, click, similar, changed, whyNoClicks, noClicks, place});
    this.undoable = [];
    this.redoable = [];
    this.object = null;  // the active object: {points, box, value, mask, under}
    this.proposals = null;  // {map, items, open}: a number for each pixel, what each is, and which are undecided
    this.over = "ask";  // whether paint takes what another class has: "ask", "take" or "keep"
    this.clicks = Promise.resolve();  // the answers of earlier clicks, for which later ones wait
    this.cursor = null;
    this.byKeys = false;
    this.asked = this.waiting = 0;
    this.layer = canvasOf(width, height);
    this.proposalLayer = canvasOf(width, height);
    this.isOpen = true;
    const side = Math.max(width, height);
    this.slider.max = Math.max(8, Math.round(side / 5));
    this.setSize(Math.max(1, Math.round(side / 50)));
    this._showPaints();
    this.choose(classes.length ? classes[0].number : UNDECIDED);
    this.element.querySelector("[data-do=similar]").hidden = !similar;
    this.answer();
    this.useTool(click ? "click" : "brush");
    this._showObject();
    this._showHistory();
    this._refresh();
    this.fit();
    if (place) this.lookAt(place);
  }

  // The value of a pixel as one sees it: the paint, or what was found below it.
  at(index) { return this.labels[index] || (this.found ? this.found[index] : 0); }

  // What erasing leaves: on what was found, that it is background.
  get nothing() { return this.found ? BACKGROUND : 0; }

  close() { this.isOpen = false; this.photo = this.labels = this.found = this.layer = this.proposalLayer = this.proposals = this.object = null; }

  say(text) { this.element.querySelector(".status").textContent = text; }

  useTool(tool) {
    if (tool === "click" && !this.click) return this.noClicks();
    this.tool = this.element.dataset.using = tool;
    press(this.element, "[data-tool]", button => button.dataset.tool === tool);
    const button = this.element.querySelector("[data-tool=click]");
    button.setAttribute("aria-disabled", String(!this.click));
    button.title = this.click ? "Click an object to outline it (C)" : this.whyNoClicks;
    if (tool !== "click") this._finishObject();
    this.say(HINTS[tool]);
    this.draw();
  }

  choose(value) {
    this.value = value;
    press(this.element, "[data-value]", button => Number(button.dataset.value) === value);
    if (this.tool === "eraser") this.useTool("brush");
    this.draw();
  }

  setSize(size) {
    this.size = Math.min(Math.max(1, Math.round(size)), Number(this.slider.max));
    this.slider.value = this.size;
    this.element.querySelector("output").textContent = `${this.size} px`;
    this.draw();
  }

  // ---- The view: where on the screen a pixel of the photo is

  fit() {
    this._measure();
    this.scale = this.fittedScale = Math.min(this.boxWidth / this.width, this.boxHeight / this.height);
    this.left = (this.boxWidth - this.width * this.scale) / 2;
    this.top = (this.boxHeight - this.height * this.scale) / 2;
    this.draw();
  }

  // Show a place of the photo, given in its pixels, from near.
  lookAt({x, y}) {
    this.zoom(NEAR);
    this.pan(this.boxWidth / 2 - this.left - x * this.scale, this.boxHeight / 2 - this.top - y * this.scale);
  }

  // The window changed its size: show the whole photo if that was shown, otherwise keep the middle where it is.
  resize() {
    if (this.scale === this.fittedScale) return this.fit();
    const {boxWidth, boxHeight} = this;
    this._measure();
    this.pan((this.boxWidth - boxWidth) / 2, (this.boxHeight - boxHeight) / 2);
  }

  zoom(factor, x = this.boxWidth / 2, y = this.boxHeight / 2) {
    const least = 0.5 * Math.min(this.boxWidth / this.width, this.boxHeight / this.height);
    const scale = Math.min(Math.max(this.scale * factor, least), DEEPEST);
    this.left = x - (x - this.left) * scale / this.scale;
    this.top = y - (y - this.top) * scale / this.scale;
    this.scale = scale;
    this.draw();
  }

  pan(x, y) {
    // Some of the photo stays in sight, or one would not find it again.
    const room = 40;
    this.left = Math.min(Math.max(this.left + x, room - this.width * this.scale), this.boxWidth - room);
    this.top = Math.min(Math.max(this.top + y, room - this.height * this.scale), this.boxHeight - room);
    this.draw();
  }

  toPhoto(event) {
    const box = this.canvas.getBoundingClientRect();
    const x = (event.clientX - box.left - this.left) / this.scale, y = (event.clientY - box.top - this.top) / this.scale;
    return {x, y};
  }

  _measure() {
    const box = this.canvas.parentElement.getBoundingClientRect();
    const density = window.devicePixelRatio || 1;
    this.boxWidth = Math.max(1, box.width);
    this.boxHeight = Math.max(1, box.height);
    this.canvas.width = Math.round(this.boxWidth * density);
    this.canvas.height = Math.round(this.boxHeight * density);
  }

  draw() {
    if (this.drawing || !this.isOpen) return;
    this.drawing = requestAnimationFrame(() => { this.drawing = 0; if (this.isOpen && this.scale) this._draw(); });
  }

  _draw() {
    const {screen} = this, density = this.canvas.width / this.boxWidth;
    screen.setTransform(1, 0, 0, 1, 0, 0);
    screen.clearRect(0, 0, this.canvas.width, this.canvas.height);
    screen.setTransform(density * this.scale, 0, 0, density * this.scale, density * this.left, density * this.top);
    screen.imageSmoothingEnabled = this.scale < 2;
    screen.drawImage(this.photo, 0, 0, this.width, this.height);
    screen.imageSmoothingEnabled = false;
    screen.drawImage(this.layer, 0, 0);
    if (this.proposals) screen.drawImage(this.proposalLayer, 0, 0);
    if (this.outline) screen.drawImage(this.outline, this.object.mask.rect.left, this.object.mask.rect.top);
    screen.setTransform(density, 0, 0, density, 0, 0);
    this._drawMarks();
  }

  _drawMarks() {
    const {screen} = this, at = (x, y) => [this.left + x * this.scale, this.top + y * this.scale];
    if (this.place) {
      screen.beginPath();
      screen.arc(...at(this.place.x, this.place.y), 24, 0, 7);
      twoColoured(screen);
    }
    for (const point of [...this.object?.points ?? [], ...this.asking ?? []]) {
      screen.beginPath();
      screen.arc(...at(point.x, point.y), 5, 0, 7);
      screen.fillStyle = point.inside ? "#1b7f3b" : "#c62828";
      screen.fill();
      twoColoured(screen);
    }
    const box = this.box ?? this.object?.box;
    if (box) {
      const [left, top] = at(box.left, box.top), [right, bottom] = at(box.right, box.bottom);
      screen.beginPath();
      screen.rect(left, top, right - left, bottom - top);
      twoColoured(screen);
    }
    if (!this.cursor) return;
    const [x, y] = at(this.cursor.x, this.cursor.y);
    screen.beginPath();
    if (this.tool === "click") {
      screen.moveTo(x - 9, y); screen.lineTo(x + 9, y); screen.moveTo(x, y - 9); screen.lineTo(x, y + 9);
    } else screen.arc(x, y, Math.max(2, this.size * this.scale / 2), 0, 7);
    twoColoured(screen);
  }

  // ---- Paint

  // Paint a line of discs from one point to another, in pixels of the photo.
  stroke(from, to, value) {
    const steps = Math.max(1, Math.ceil(Math.hypot(to.x - from.x, to.y - from.y) / Math.max(1, this.size / 4)));
    for (let step = 0; step <= steps; step++)
      this._disc(from.x + (to.x - from.x) * step / steps, from.y + (to.y - from.y) * step / steps, value);
    this._refresh(rectAround(from, to, this.size));
  }

  _disc(x, y, value) {
    // Odd sizes stand on a pixel and even ones between two, so that a brush of n pixels is n pixels wide.
    const odd = this.size % 2, half = this.size / 2;
    const centreX = odd ? Math.floor(x) + 0.5 : Math.round(x), centreY = odd ? Math.floor(y) + 0.5 : Math.round(y);
    const first = Math.max(0, Math.floor(centreY - half)), last = Math.min(this.height - 1, Math.ceil(centreY + half));
    for (let row = first; row <= last; row++) {
      const off = row + 0.5 - centreY, reach = half * half - off * off;
      if (reach < 0) continue;
      const span = Math.sqrt(reach);
      const start = Math.max(0, Math.ceil(centreX - span - 0.5)), end = Math.min(this.width - 1, Math.floor(centreX + span - 0.5));
      if (start <= end) this.labels.fill(value, row * this.width + start, row * this.width + end + 1);
    }
  }

  // Run `change`, which changes labels, as one step that can be undone. Afterwards `object` is the active one.
  step(change, object = null) {
    this.before ??= this.labels.slice();
    change();
    this._finish(object);
  }

  _finish(object = null, proposals = this.proposals) {
    const {before} = this, was = {object: this.object, proposals: this.proposals};
    this.before = null;
    if (!before) return;
    const lost = this._giveBack(before), rect = differing(before, this.labels, this.width, this.height);
    if (!rect && object === was.object && proposals === was.proposals) return lost && this._askAbout(lost);
    const step = {rect, was, is: {object, proposals}};
    if (rect) Object.assign(step, {before: cut(before, rect, this.width), after: cut(this.labels, rect, this.width)});
    this.undoable.push(step);
    if (this.undoable.length > MOST_STEPS) this.undoable.shift();
    this.redoable = [];
    this._restore(step.is, rect);
    if (lost) this._askAbout(lost);
  }

  _restore({object, proposals}, rect) {
    Object.assign(this, {object, proposals});
    this._showObject();
    this._showProposals();
    if (rect) this._refresh(rect);
    this._showHistory();
    this.changed();
  }

  undo() {
    if (this.waiting) return this._cancel("The click was taken back.");
    this._move(this.undoable, this.redoable, "before", "was");
  }

  redo() { this._move(this.redoable, this.undoable, "after", "is"); }

  _move(from, to, which, state) {
    const step = from.pop();
    if (!step) return;
    this.answer();
    if (step.rect) paste(this.labels, step[which], step.rect, this.width);
    to.push(step);
    this._restore(step[state], step.rect);
    this.say(this.object ? ACTIVE : HINTS[this.tool]);
  }

  // ---- Paint over paint

  // Give back what other classes had before a step, unless it may be taken. Where one class lies on another, the upper
  // one is kept: the example has both there.
  _giveBack(before) {
    const {labels} = this, isClass = value => value > 0 && value < BACKGROUND;
    const below = new Map(this.classes.map(each => [each.number, each.liesOn ?? []])), lost = [];
    for (let index = 0; index < labels.length; index++) {
      const had = before[index], has = labels[index];
      if (had === has || !isClass(had) || !isClass(has) || below.get(has)?.includes(had)) continue;
      const keeps = below.get(had)?.includes(has);
      if (this.over === "take" && !keeps) continue;
      labels[index] = had;
      if (this.over === "ask" && !keeps) lost.push([index, has]);
    }
    return lost.length ? lost : null;
  }

  _askAbout(lost) {
    const names = new Map(this.classes.map(each => [each.number, each.name]));
    const other = [...new Set(lost.map(([index]) => names.get(this.labels[index])))].join(" and ");
    const count = lost.length.toLocaleString("en");
    this.ask(`${other} is painted on ${count} of these pixels and was kept.`, [
      [`Keep ${other}`, () => { this.over = "keep"; }],
      ["Paint over it", () => { this.over = "take"; this.step(() => { for (const [index, value] of lost) this.labels[index] = value; }, this.object); }],
    ]);
  }

  // Ask something below the photo; each answer is [text, function, whether it is the usual one].
  ask(text, answers, about = "") {
    const box = this.element.querySelector(".question"), words = document.createElement("span");
    words.textContent = text;
    box.replaceChildren(words, ...answers.map(([label, does, isUsual]) => {
      const button = document.createElement("button");
      Object.assign(button, {type: "button", textContent: label, className: isUsual ? "primary" : ""});
      // The button goes, and keys must still reach the editor.
      button.addEventListener("click", event => { event.stopPropagation(); this.canvas.focus({preventScroll: true}); this.answer(); does(); });
      return button;
    }));
    this.say(text);
    this.element.dataset.asks = about;
    box.hidden = false;
  }

  // The question is answered, or there is none any more.
  answer() {
    this.element.querySelector(".question").hidden = true;
    delete this.element.dataset.asks;
    if (this.proposals?.open.size) this._askAboutProposals();
  }

  clear() { this.step(() => this.labels.fill(0)); }

  // That none of the classes is here.
  clearAll() { this.step(() => this.labels.fill(this.nothing)); }

  // Remove the connected paint of one kind at a point; say whether there was any. Of what was found, it is "not this".
  removeBlob(x, y) {
    const start = this._index(x, y), value = start < 0 ? 0 : this.at(start), {nothing} = this;
    if (!value || value === nothing) return false;
    this.step(() => {
      const todo = [start], {labels, width} = this;
      labels[start] = nothing;
      while (todo.length) {
        const index = todo.pop(), column = index % width;
        for (const next of [index - width, index + width, column ? index - 1 : -1, column < width - 1 ? index + 1 : -1])
          if (next >= 0 && next < labels.length && this.at(next) === value) { labels[next] = nothing; todo.push(next); }
      }
    });
    this.say(`${this.found ? "Not this" : "Removed"}. ${COMMAND}+Z brings it back.`);
    return true;
  }

  _index(x, y) {
    const column = Math.floor(x), row = Math.floor(y);
    return column < 0 || row < 0 || column >= this.width || row >= this.height ? -1 : row * this.width + column;
  }

  // Show labels on the layer, all of them or those in a rectangle.
  _refresh(rect = {left: 0, top: 0, right: this.width, bottom: this.height}) {
    const left = Math.max(0, rect.left), top = Math.max(0, rect.top);
    const width = Math.min(this.width, rect.right) - left, height = Math.min(this.height, rect.bottom) - top;
    if (width <= 0 || height <= 0) return;
    const shown = new ImageData(width, height), pixels = shown.data, colours = this._colours();
    for (let row = 0, at = 0; row < height; row++)
      for (let column = 0; column < width; column++, at += 4) {
        const index = (top + row) * this.width + left + column, value = this.at(index);
        if (!value) continue;
        const hatch = HATCH[value];
        const colour = hatch ? hatch[(row + top + column + left) >> 2 & 1] : colours[value] ?? [128, 128, 128];
        pixels[at] = colour[0]; pixels[at + 1] = colour[1]; pixels[at + 2] = colour[2];
        pixels[at + 3] = 255 * (this.labels[index] ? OPACITY : FOUND_OPACITY);
      }
    this.layer.getContext("2d").putImageData(shown, left, top);
    this.draw();
  }

  _showHistory() {
    for (const [name, steps] of [["undo", this.undoable], ["redo", this.redoable]])
      this.element.querySelector(`[data-do=${name}]`).disabled = !steps.length;
  }

  _colours() {
    const colours = {};
    for (const {number, colour} of this.classes) colours[number] = colour.match(/\d+/g).map(Number);
    return colours;
  }

  // ---- Click to mask

  // A click on the photo. Whatever it means is decided when the clicks before it are answered.
  clickAt(x, y, {inside = true, more = false} = {}) {
    if (this._index(x, y) < 0) return this.clicks;
    const {value} = this;  // that of now: another class may be chosen before the answer is there
    return this._queue({x, y, inside}, () => this._click({x, y, inside}, value, more));
  }

  addBox(box) {
    const clip = (value, most) => Math.min(Math.max(value, 0), most);
    const kept = {
      left: clip(Math.min(box.left, box.right), this.width), right: clip(Math.max(box.left, box.right), this.width),
      top: clip(Math.min(box.top, box.bottom), this.height), bottom: clip(Math.max(box.top, box.bottom), this.height),
    };
    if (kept.right - kept.left < 1 || kept.bottom - kept.top < 1) return this.clicks;
    const {value} = this;
    return this._queue(null, () => this.same && this.object ? this._outline({...this.object, box: kept}, this.object)
      : this._outline({points: [], box: kept, value}));
  }

  _queue(point, work) {
    const {asked} = this;
    this.waiting++;
    this.asking = [...this.asking ?? [], ...point ? [point] : []];
    this.draw();
    this.clicks = this.clicks.then(() => asked === this.asked && this.isOpen ? work() : null).catch(error => this.say(error.message)).finally(() => {
      if (asked !== this.asked) return;
      this.waiting--;
      this.asking = this.asking.filter(each => each !== point);
      this.draw();
    });
    return this.clicks;
  }

  // Take back the clicks that are not answered yet.
  _cancel(text) {
    this.asked++;
    this.waiting = 0;
    this.asking = null;
    this.say(text);
    this.draw();
  }

  async _click(point, value, more) {
    const {x, y, inside} = point, {object} = this;
    if (this.decideAt(x, y, inside)) return;
    const isIn = object && has(object.mask, this._index(x, y), this.width);
    if (!inside && !isIn) {
      if (this.removeBlob(x, y)) return;
      if (!object) return this.say("Nothing is painted here.");
    }
    const continues = object && (isIn || !inside || more || this.same);
    if (continues) await this._outline({...object, points: [...object.points, point]}, object);
    else await this._outline({points: [point], box: null, value});
  }

  // Ask for the outline of an object and paint it, in place of the object that it continues.
  async _outline({points, box, value}, continued = null) {
    const {asked} = this;
    this.say("Looking for the outline …");
    const mask = await this.click({points: points.map(({x, y, inside}) => ({x, y, inside: inside ? 1 : 0})), box});
    if (asked !== this.asked || !this.isOpen) return;  // it was taken back meanwhile
    const piece = patchOf(mask, this.width, this.height);
    if (!piece) return this.say("Nothing was found here. Click again, or drag a box.");
    this.before = this.labels.slice();
    if (continued) paste(this.labels, continued.under, continued.mask.rect, this.width);
    const object = {points, box, value, mask: piece, under: cut(this.labels, piece.rect, this.width)};
    this.step(() => eachOf(piece, this.width, index => { this.labels[index] = value; }), object);
    this.say(ACTIVE);
  }

  // Whether clicks take away from the object, and whether all of them belong to it; fingers have no shift key.
  takeAway(takes) { this.takes = takes; press(this.element, "[data-do=take]", () => takes); }

  keepAdding(same) { this.same = same; press(this.element, "[data-do=same]", () => same); }

  // Erase what is inside the outline.
  erase() {
    const {object} = this;
    if (object) this.step(() => eachOf(object.mask, this.width, index => { this.labels[index] = this.nothing; }));
    this.say("Erased.");
  }

  // Remove the active object.
  forget() {
    const {object} = this;
    if (object) this.step(() => paste(this.labels, object.under, object.mask.rect, this.width));
    this.say(`Removed. ${COMMAND}+Z brings it back.`);
  }

  // The object is complete: the next click begins another one.
  _finishObject() {
    if (!this.object) return;
    this.object = null;
    this._showObject();
  }

  _showObject() {
    this.element.querySelector(".object-actions").hidden = !this.object;
    this.outline = null;
    if (!this.object) { this.takeAway(false); this.keepAdding(false); return this.draw(); }
    const {rect, bits} = this.object.mask, width = rect.right - rect.left, height = rect.bottom - rect.top;
    const shown = new ImageData(width, height), pixels = new Uint32Array(shown.data.buffer);
    for (let row = 0, index = 0; row < height; row++)
      for (let column = 0; column < width; column++, index++)
        if (bits[index] && isEdge(bits, row, column, width, height)) pixels[index] = (row + column) >> 2 & 1 ? 0xff000000 : 0xffffffff;
    this.outline = canvasOf(width, height);
    this.outline.getContext("2d").putImageData(shown, 0, 0);
    this.draw();
  }

  // ---- Proposals: objects that look like those that were painted

  async findMore() {
    if (!this.similar || this.searching) return;
    this.searching = true;
    this.say("Looking for more of these …");
    try {
      const {width} = this, found = await this.similar();
      if (!this.isOpen || width !== this.width) return;
      this.propose(found);
      if (!found.items.length) this.say("Nothing else looks like these. Paint one or two more and try again.");
    } catch (error) {
      this.say(error.message);
    } finally {
      this.searching = false;
    }
  }

  // map: a number for each pixel, 0 for none; items: [{id, value}] with the class that each would be.
  propose({map, items}) {
    this.proposals = items.length ? {map, items, open: new Set(items.map(each => each.id))} : null;
    this._showProposals();
  }

  // Accept or reject the proposal at a point; say whether there is one.
  decideAt(x, y, accepted) {
    const index = this._index(x, y), id = index < 0 ? 0 : this.proposals?.map[index];
    if (!id || !this.proposals.open.has(id)) return false;
    this.decide([id], accepted);
    return true;
  }

  decide(ids, accepted) {
    const {proposals, labels} = this, values = new Map(proposals.items.filter(each => ids.includes(each.id)).map(each => [each.id, each.value]));
    this.before ??= labels.slice();
    if (accepted)
      for (let index = 0; index < labels.length; index++) if (values.has(proposals.map[index])) labels[index] = values.get(proposals.map[index]);
    const open = new Set([...proposals.open].filter(id => !values.has(id)));
    this._finish(null, {...proposals, open});
    this.say(accepted ? `Painted. ${COMMAND}+Z takes it back.` : `Rejected. ${COMMAND}+Z brings it back.`);
  }

  decideAll(accepted) { if (this.proposals) this.decide([...this.proposals.open], accepted); }

  _askAboutProposals() {
    const count = this.proposals.open.size;
    this.ask(`${count} ${count === 1 ? "looks" : "look"} like these. Click one to accept it, shift-click to reject it.`, [
      [count === 1 ? "Accept" : `Accept all ${count}`, () => this.decideAll(true), true], ["None of them", () => this.decideAll(false)]], "proposals");
  }

  _showProposals() {
    const layer = this.proposalLayer.getContext("2d"), {width, height} = this;
    layer.clearRect(0, 0, width, height);
    if (!this.proposals?.open.size) {
      if (this.element.dataset.asks === "proposals") this.answer();
      return this.draw();
    }
    const {map, items, open} = this.proposals, shown = layer.createImageData(width, height), colours = this._colours();
    const values = new Map(items.map(each => [each.id, colours[each.value] ?? [128, 128, 128]]));
    for (let row = 0, index = 0; row < height; row++)
      for (let column = 0; column < width; column++, index++) {
        const id = map[index];
        if (!id || !open.has(id)) continue;
        const edge = !row || !column || row === height - 1 || column === width - 1 ||
          map[index - 1] !== id || map[index + 1] !== id || map[index - width] !== id || map[index + width] !== id;
        const colour = edge && (row + column) >> 2 & 1 ? [255, 255, 255] : values.get(id);
        shown.data.set([...colour, edge ? 255 : 60], 4 * index);
      }
    layer.putImageData(shown, 0, 0);
    this._askAboutProposals();
    this.draw();
  }

  // ---- What leaves the editor

  // The labels as the bytes of a grey PNG.
  async png() { return encodePng(this.labels, this.width, this.height); }

  // The paint and what was found below it, as one sees it.
  async wholePng() { return encodePng(this.labels.map((_, index) => this.at(index)), this.width, this.height); }

  // ---- Mouse, fingers and keys

  _listen() {
    const {canvas, element} = this;
    const on = (target, name, handler, options) => target.addEventListener(name, event => { if (this.isOpen) handler(event); }, options);
    on(canvas, "pointerdown", event => this._down(event));
    on(canvas, "pointermove", event => this._moveTo(event));
    on(canvas, "pointerup", event => this._up(event));
    on(canvas, "pointercancel", event => this._up(event));
    on(canvas, "pointerleave", () => { if (!this.pointers.size && !this.byKeys) { this.cursor = null; this.draw(); } });
    on(canvas, "contextmenu", event => event.preventDefault());
    on(canvas, "wheel", event => this._wheel(event), {passive: false});
    on(element, "click", event => this._press(event.target.closest("button")));
    on(this.slider, "input", () => this.setSize(Number(this.slider.value)));
    new ResizeObserver(() => { if (this.isOpen) this.resize(); }).observe(canvas.parentElement);
  }

  _press(button) {
    if (!button || button.disabled) return;
    const {tool, value, do: what} = button.dataset;
    if (tool) this.useTool(tool);
    else if (value) this.choose(Number(value));
    else ({undo: () => this.undo(), redo: () => this.redo(), clear: () => this.clear(), fit: () => this.fit(),
      "zoom-in": () => this.zoom(1.25), "zoom-out": () => this.zoom(0.8), similar: () => this.findMore(),
      erase: () => { this.canvas.focus(); this.erase(); }, forget: () => { this.canvas.focus(); this.forget(); }, take: () => this.takeAway(!this.takes), same: () => this.keepAdding(!this.same)})[what]?.();
  }

  _down(event) {
    event.preventDefault();
    this.canvas.focus({preventScroll: true});
    this.canvas.setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, {x: event.clientX, y: event.clientY});
    this.byKeys = false;
    if (this.pointers.size === 2) return this._beginPinch();
    const at = this.toPhoto(event), take = event.button === 2 || event.shiftKey || this.tool === "click" && this.takes;
    this.cursor = at;
    if (event.button === 1 || this.spaceHeld) this.gesture = {kind: "pan"};
    else if (this.tool === "click" || this._isProposed(at))
      this.gesture = {kind: "click", from: at, x: event.clientX, y: event.clientY, take, more: event.ctrlKey || event.metaKey};
    else if (take) { this.gesture = null; if (!this.removeBlob(at.x, at.y)) this.say("Nothing is painted here."); }
    else this._beginStroke(at);
  }

  _isProposed({x, y}) { const index = this._index(x, y); return index >= 0 && Boolean(this.proposals?.open.has(this.proposals.map[index])); }

  _beginStroke(at) {
    this.before = this.labels.slice();
    this.gesture = {kind: "stroke", last: at, value: this.tool === "eraser" ? this.nothing : this.value};
    this.stroke(at, at, this.gesture.value);
  }

  _moveTo(event) {
    const at = this.toPhoto(event), before = this.pointers.get(event.pointerId), {gesture} = this;
    this.cursor = at;
    this.byKeys = false;
    if (before) {
      this.pointers.set(event.pointerId, {x: event.clientX, y: event.clientY});
      if (gesture?.kind === "pinch") return this._pinch();
      if (gesture?.kind === "pan") this.pan(event.clientX - before.x, event.clientY - before.y);
      if (gesture?.kind === "stroke") { this.stroke(gesture.last, at, gesture.value); gesture.last = at; }
      if (gesture?.kind === "click" && Math.hypot(event.clientX - gesture.x, event.clientY - gesture.y) > DRAG)
        if (this.tool !== "click") this._beginStroke(gesture.from);  // a brush that began on a proposal
        else this.box = {left: gesture.from.x, top: gesture.from.y, right: at.x, bottom: at.y};
    }
    this.draw();
  }

  _up(event) {
    const {gesture, box} = this;
    this.pointers.delete(event.pointerId);
    if (this.pointers.size) return;
    this.gesture = this.box = null;
    if (gesture?.kind === "stroke") this._finish();
    if (gesture?.kind === "click" && event.type === "pointerup")
      box ? this.addBox(box) : this.clickAt(gesture.from.x, gesture.from.y, {inside: !gesture.take, more: gesture.more});
  }

  _beginPinch() {
    if (this.gesture?.kind === "stroke" && this.before) {  // the first finger was not meant to paint
      this.labels.set(this.before);
      this.before = null;
      this._refresh();
    }
    this.box = null;
    this.gesture = {kind: "pinch", ...this._fingers()};
  }

  _pinch() {
    const now = this._fingers(), {gesture} = this, box = this.canvas.getBoundingClientRect();
    this.pan(now.x - gesture.x, now.y - gesture.y);
    this.zoom(now.apart / gesture.apart, now.x - box.left, now.y - box.top);
    Object.assign(gesture, now);
  }

  _fingers() {
    const [a, b] = [...this.pointers.values()];
    return {x: (a.x + b.x) / 2, y: (a.y + b.y) / 2, apart: Math.max(1, Math.hypot(a.x - b.x, a.y - b.y))};
  }

  _wheel(event) {
    event.preventDefault();
    const box = this.canvas.getBoundingClientRect();
    // A pinch on a touchpad arrives as a wheel with Ctrl, in small steps.
    this.zoom(Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.0015)), event.clientX - box.left, event.clientY - box.top);
  }

  // Handle a key; say whether it was one of the editor's.
  key(event) {
    if (!this.isOpen || event.altKey) return false;
    const key = event.key.toLowerCase(), command = event.ctrlKey || event.metaKey;
    if (command) {
      if (key === "z") return event.shiftKey ? this.redo() : this.undo(), true;
      return key === "y" ? (this.redo(), true) : false;
    }
    if (event.target.matches?.("input, select, textarea")) return false;
    const number = /^[1-9]$/.test(key) ? this.classes[Number(key) - 1] : null;
    if (number) return this.choose(number.number), true;
    if (document.activeElement === this.canvas && this._keyOnCanvas(event)) return true;
    const does = {
      m: () => this.findMore(), b: () => this.useTool("brush"), e: () => this.useTool("eraser"), c: () => this.useTool("click"),
      0: () => this.choose(BACKGROUND), u: () => this.choose(UNDECIDED), f: () => this.fit(),
      "+": () => this.zoom(1.25), "=": () => this.zoom(1.25), "-": () => this.zoom(0.8),
      "[": () => this.setSize(Math.min(this.size - 1, this.size * 0.9)), "]": () => this.setSize(Math.max(this.size + 1, this.size * 1.1)),
    }[key];
    if (does) return does(), true;
    if (this.object && key === "enter" && !event.target.matches("button")) return this._finishObject(), this.say("Click the next object."), true;
    if (this.object && key === "escape") return this.forget(), true;
    return false;
  }

  // The arrow keys move a pointer over the photo, and the space bar does what a mouse button does.
  _keyOnCanvas(event) {
    const step = event.shiftKey ? 1 : Math.max(1, Math.round(Math.max(this.width, this.height) / 50));
    const move = {ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, -step], ArrowDown: [0, step]}[event.key];
    if (move) {
      const from = this.cursor ?? {x: this.width / 2, y: this.height / 2};
      this.cursor = {x: Math.min(Math.max(from.x + move[0], 0), this.width - 1), y: Math.min(Math.max(from.y + move[1], 0), this.height - 1)};
      this.byKeys = true;
      this.draw();
      return true;
    }
    if (event.key !== " ") return false;
    if (!this.byKeys) { this.spaceHeld = true; return true; }
    const {x, y} = this.cursor;
    if (this.tool === "click") this.clickAt(x, y, {inside: !event.shiftKey && !this.takes});
    else if (this.decideAt(x, y, !event.shiftKey)) return true;
    else if (event.shiftKey) this.removeBlob(x, y);
    else this.step(() => this.stroke(this.cursor, this.cursor, this.tool === "eraser" ? this.nothing : this.value));
    return true;
  }

  keyUp(event) { if (event.key === " ") this.spaceHeld = false; }

  _showPaints() {
    const paints = this.classes.map((each, index) => ({value: each.number, name: each.name, key: index < 9 ? String(index + 1) : "", colour: each.colour}));
    this.element.querySelector(".paints").replaceChildren(...[...paints, ...SPECIAL].map(({value, name, key, colour}) => {
      const button = document.createElement("button"), dot = document.createElement("i");
      button.type = "button";
      button.dataset.value = value;
      button.style.setProperty("--colour", colour);
      button.title = key ? `Paint ${name} (${key})` : `Paint ${name}`;
      button.append(dot, name);
      return button;
    }));
  }
}

// ---- Small things

function canvasOf(width, height) { return Object.assign(document.createElement("canvas"), {width, height}); }

function press(element, selector, isPressed) {
  for (const button of element.querySelectorAll(selector)) button.setAttribute("aria-pressed", String(isPressed(button)));
}

function twoColoured(screen) {  // to be seen on light and dark photos alike
  screen.lineWidth = 3; screen.strokeStyle = "rgba(0, 0, 0, .7)"; screen.stroke();
  screen.lineWidth = 1.25; screen.strokeStyle = "#fff"; screen.stroke();
}

function rectAround(a, b, size) {
  return {left: Math.floor(Math.min(a.x, b.x) - size), top: Math.floor(Math.min(a.y, b.y) - size),
    right: Math.ceil(Math.max(a.x, b.x) + size), bottom: Math.ceil(Math.max(a.y, b.y) + size)};
}

function differing(before, after, width, height) {
  let left = width, right = 0, top = -1, bottom = 0;
  for (let row = 0; row < height; row++)
    for (let column = 0, index = row * width; column < width; column++, index++)
      if (before[index] !== after[index]) {
        if (top < 0) top = row;
        bottom = row + 1;
        if (column < left) left = column;
        if (column >= right) right = column + 1;
      }
  return top < 0 ? null : {left, top, right, bottom};
}

function cut(labels, {left, top, right, bottom}, width) {
  const piece = new Uint8Array((right - left) * (bottom - top));
  for (let row = top; row < bottom; row++)
    piece.set(labels.subarray(row * width + left, row * width + right), (row - top) * (right - left));
  return piece;
}

function paste(labels, piece, {left, top, right, bottom}, width) {
  for (let row = top; row < bottom; row++)
    labels.set(piece.subarray((row - top) * (right - left), (row - top + 1) * (right - left)), row * width + left);
}

// A mask without the empty pixels around it: {rect, bits}; null if there is nothing in it.
function patchOf(mask, width, height) {
  const rect = differing(new Uint8Array(mask.length), mask, width, height);
  return rect && {rect, bits: cut(mask, rect, width)};
}

function eachOf({rect, bits}, width, does) {
  for (let row = rect.top, at = 0; row < rect.bottom; row++)
    for (let column = rect.left; column < rect.right; column++, at++) if (bits[at]) does(row * width + column);
}

function has({rect, bits}, index, width) {
  const row = Math.floor(index / width), column = index % width;
  return row >= rect.top && row < rect.bottom && column >= rect.left && column < rect.right &&
    bits[(row - rect.top) * (rect.right - rect.left) + column - rect.left] > 0;
}

function isEdge(bits, row, column, width, height) {
  const index = row * width + column;
  return !row || !column || row === height - 1 || column === width - 1 ||
    !bits[index - 1] || !bits[index + 1] || !bits[index - width] || !bits[index + width];
}

export async function unpack(data) {
  const stream = new Blob([data]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

export async function encodePng(grey, width, height) {
  const rows = new Uint8Array((width + 1) * height);  // each begins with 0: no filter
  for (let row = 0; row < height; row++) rows.set(grey.subarray(row * width, (row + 1) * width), row * (width + 1) + 1);
  const stream = new Blob([rows]).stream().pipeThrough(new CompressionStream("deflate"));
  const packed = new Uint8Array(await new Response(stream).arrayBuffer());
  const head = new Uint8Array(13), view = new DataView(head.buffer);
  view.setUint32(0, width);
  view.setUint32(4, height);
  head[8] = 8;  // bits; colour type 0 is grey
  const signature = new Uint8Array([137, 80, 78, 71, 13, 10, 26, 10]);
  const file = new Blob([signature, chunk("IHDR", head), chunk("IDAT", packed), chunk("IEND", new Uint8Array())]);
  return new Uint8Array(await file.arrayBuffer());
}

function chunk(name, data) {
  const bytes = new Uint8Array(12 + data.length), view = new DataView(bytes.buffer);
  view.setUint32(0, data.length);
  for (let index = 0; index < 4; index++) bytes[4 + index] = name.charCodeAt(index);
  bytes.set(data, 8);
  view.setUint32(8 + data.length, crc(bytes.subarray(4, 8 + data.length)));
  return bytes;
}

const CRC = Uint32Array.from({length: 256}, (_, value) => {
  for (let bit = 0; bit < 8; bit++) value = value & 1 ? 0xedb88320 ^ value >>> 1 : value >>> 1;
  return value;
});

function crc(bytes) {
  let value = -1;
  for (const byte of bytes) value = CRC[(value ^ byte) & 255] ^ value >>> 8;
  return ~value >>> 0;
}
