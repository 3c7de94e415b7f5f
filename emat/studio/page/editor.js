// The editor: paint classes on a photo with clicks, a brush and an eraser.
//
// The truth is `labels`, one byte for each pixel of the photo: 0 is not painted, 1 to 12 are classes, 254 is background
// and 255 is undecided. It never passes through a canvas on its way to the server, because some browsers change pixels
// there to protect privacy. The canvas only shows it.
//
//   const editor = new Editor(element);
//   editor.open({photo, width, height, labels, classes, click, changed});
//   const png = await editor.png();

export const BACKGROUND = 254, UNDECIDED = 255;
const OPACITY = 0.55, MOST_STEPS = 100, DRAG = 5, DEEPEST = 40;
const HATCH = {[BACKGROUND]: [[20, 22, 28], [70, 74, 84]], [UNDECIDED]: [[245, 245, 245], [150, 150, 150]]};
const SPECIAL = [
  {value: BACKGROUND, name: "Background", key: "0", colour: "#14161c"},
  {value: UNDECIDED, name: "Undecided", key: "U", colour: "#c8c8c8"},
];
const COMMAND = /Mac|iPhone|iPad/.test(navigator.platform) ? "Cmd" : "Ctrl";
const HINTS = {
  click: "Click an object, or drag a box around it. Shift-click removes what is painted.",
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
    <div class="outline-actions" hidden>
      <button type="button" class="primary" data-do="accept" title="Paint the outlined object (Enter)">Accept</button>
      <button type="button" data-do="take" aria-pressed="false" title="Let clicks take away from the outline, as shift-clicks do">Take away</button>
      <button type="button" data-do="erase" title="Erase inside the outline">Erase</button>
      <button type="button" data-do="discard" title="Forget the outline (Escape)">Discard</button>
    </div>
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

  // photo: an image that is loaded; classes: [{name, number, colour}]; click: prompt => Promise of a mask, or null when
  // there are no clicks here (`whyNoClicks` says why); changed: called whenever the paint has changed.
  open({photo, width, height, labels, classes, click = null, whyNoClicks = "", changed = () => {}}) {
    Object.assign(this, {photo, width, height, labels, classes, click, changed, whyNoClicks});
    this.undoable = [];
    this.redoable = [];
    this.outline = null;
    this.cursor = null;
    this.byKeys = false;
    this.asked = 0;
    this.layer = canvasOf(width, height);
    this.outlineLayer = canvasOf(width, height);
    this.isOpen = true;
    const side = Math.max(width, height);
    this.slider.max = Math.max(8, Math.round(side / 5));
    this.setSize(Math.max(1, Math.round(side / 50)));
    this._showPaints();
    this.choose(classes.length ? classes[0].number : UNDECIDED);
    this.useTool(click ? "click" : "brush");
    this._refresh();
    this.fit();
  }

  close() { this.isOpen = false; this.photo = this.labels = this.layer = this.outlineLayer = null; }

  say(text) { this.element.querySelector(".status").textContent = text; }

  useTool(tool) {
    if (tool === "click" && !this.click) return this.say(this.whyNoClicks);
    this.tool = this.element.dataset.using = tool;
    press(this.element, "[data-tool]", button => button.dataset.tool === tool);
    const button = this.element.querySelector("[data-tool=click]");
    button.setAttribute("aria-disabled", String(!this.click));
    button.title = this.click ? "Click an object to outline it (C)" : this.whyNoClicks;
    if (!this.outline) this.say(HINTS[tool]);
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
    if (this.outline?.mask) screen.drawImage(this.outlineLayer, 0, 0);
    screen.setTransform(density, 0, 0, density, 0, 0);
    this._drawMarks();
  }

  _drawMarks() {
    const {screen} = this, at = (x, y) => [this.left + x * this.scale, this.top + y * this.scale];
    for (const point of this.outline?.points ?? []) {
      screen.beginPath();
      screen.arc(...at(point.x, point.y), 5, 0, 7);
      screen.fillStyle = point.inside ? "#1b7f3b" : "#c62828";
      screen.fill();
      twoColoured(screen);
    }
    const box = this.box ?? this.outline?.box;
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

  // Run `change`, which changes labels, as one step that can be undone.
  step(change) {
    this.before ??= this.labels.slice();
    change();
    this._finish();
  }

  _finish() {
    const before = this.before;
    this.before = null;
    if (!before) return;
    const rect = differing(before, this.labels, this.width, this.height);
    if (!rect) return;
    this.undoable.push({rect, before: cut(before, rect, this.width), after: cut(this.labels, rect, this.width)});
    if (this.undoable.length > MOST_STEPS) this.undoable.shift();
    this.redoable = [];
    this._refresh(rect);
    this.changed();
  }

  undo() { this._move(this.undoable, this.redoable, "before"); }

  redo() { this._move(this.redoable, this.undoable, "after"); }

  _move(from, to, which) {
    if (this.outline) return this.discard();
    const step = from.pop();
    if (!step) return;
    paste(this.labels, step[which], step.rect, this.width);
    to.push(step);
    this._refresh(step.rect);
    this.changed();
  }

  clear() { this.step(() => this.labels.fill(0)); }

  // Remove the connected paint of one kind at a point; say whether there was any.
  removeBlob(x, y) {
    const start = this._index(x, y);
    if (start < 0 || !this.labels[start]) return false;
    this.step(() => {
      const value = this.labels[start], todo = [start], {labels, width} = this;
      labels[start] = 0;
      while (todo.length) {
        const index = todo.pop(), column = index % width;
        for (const next of [index - width, index + width, column ? index - 1 : -1, column < width - 1 ? index + 1 : -1])
          if (next >= 0 && next < labels.length && labels[next] === value) { labels[next] = 0; todo.push(next); }
      }
    });
    this.say(`Removed. ${COMMAND}+Z brings it back.`);
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
        const value = this.labels[(top + row) * this.width + left + column];
        if (!value) continue;
        const hatch = HATCH[value];
        const colour = hatch ? hatch[(row + top + column + left) >> 2 & 1] : colours[value] ?? [128, 128, 128];
        pixels[at] = colour[0]; pixels[at + 1] = colour[1]; pixels[at + 2] = colour[2];
        pixels[at + 3] = 255 * OPACITY;
      }
    this.layer.getContext("2d").putImageData(shown, left, top);
    for (const [name, steps] of [["undo", this.undoable], ["redo", this.redoable]])
      this.element.querySelector(`[data-do=${name}]`).disabled = !steps.length;
    this.draw();
  }

  _colours() {
    const colours = {};
    for (const {number, colour} of this.classes) colours[number] = colour.match(/\d+/g).map(Number);
    return colours;
  }

  // ---- Click to mask

  async addPoint(x, y, inside) {
    if (this._index(x, y) < 0) return;
    if (!this.outline && !inside) {
      if (!this.removeBlob(x, y)) this.say("Nothing is painted here.");
      return;
    }
    this.outline ??= {points: [], box: null, mask: null};
    this.outline.points.push({x, y, inside});
    await this._ask();
  }

  // Whether clicks take away from the outline; fingers have no shift key.
  takeAway(takes) {
    this.takes = takes;
    press(this.element, "[data-do=take]", () => takes);
  }

  async addBox(box) {
    const clip = (value, most) => Math.min(Math.max(value, 0), most);
    const kept = {
      left: clip(Math.min(box.left, box.right), this.width), right: clip(Math.max(box.left, box.right), this.width),
      top: clip(Math.min(box.top, box.bottom), this.height), bottom: clip(Math.max(box.top, box.bottom), this.height),
    };
    if (kept.right - kept.left < 1 || kept.bottom - kept.top < 1) return;
    this.outline ??= {points: [], box: null, mask: null};
    this.outline.box = kept;
    await this._ask();
  }

  async _ask() {
    const asked = ++this.asked, outline = this.outline;
    const points = outline.points.map(({x, y, inside}) => ({x, y, inside: inside ? 1 : 0}));
    this.draw();
    this.say("Looking for the outline …");
    try {
      const mask = await this.click({points, box: outline.box});
      if (asked !== this.asked || outline !== this.outline) return;  // another click or Escape came meanwhile
      outline.mask = mask;
      this._showOutline();
      this.say("Enter accepts the outline, Escape forgets it. Click again to add, shift-click to take away.");
    } catch (error) {
      if (asked !== this.asked) return;
      this.discard();
      this.say(error.message);
    }
  }

  _showOutline() {
    const {mask} = this.outline, {width, height} = this;
    const shown = new ImageData(width, height), pixels = new Uint32Array(shown.data.buffer);
    for (let row = 0, index = 0; row < height; row++)
      for (let column = 0; column < width; column++, index++) {
        if (!mask[index]) continue;
        const edge = !row || !column || row === height - 1 || column === width - 1 ||
          !mask[index - 1] || !mask[index + 1] || !mask[index - width] || !mask[index + width];
        pixels[index] = edge ? ((row + column) >> 2 & 1 ? 0xff000000 : 0xffffffff) : 0x50ffffff;
      }
    this.outlineLayer.getContext("2d").putImageData(shown, 0, 0);
    this.element.querySelector(".outline-actions").hidden = false;
    this.draw();
  }

  accept(value = this.value) {
    const mask = this.outline?.mask;
    if (!mask) return;
    this.step(() => { for (let index = 0; index < mask.length; index++) if (mask[index]) this.labels[index] = value; });
    this.discard(value ? "Painted. Click the next object." : "Erased.");
  }

  discard(text = HINTS[this.tool]) {
    this.asked++;
    this.outline = null;
    this.takeAway(false);
    this.element.querySelector(".outline-actions").hidden = true;
    this.say(text);
    this.draw();
  }

  // ---- What leaves the editor

  // The labels as the bytes of a grey PNG.
  async png() { return encodePng(this.labels, this.width, this.height); }

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
      "zoom-in": () => this.zoom(1.25), "zoom-out": () => this.zoom(0.8), accept: () => this.accept(),
      erase: () => this.accept(0), discard: () => this.discard(), take: () => this.takeAway(!this.takes)})[what]?.();
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
    else if (this.tool === "click") this.gesture = {kind: "click", from: at, x: event.clientX, y: event.clientY, take};
    else if (take) { this.gesture = null; if (!this.removeBlob(at.x, at.y)) this.say("Nothing is painted here."); }
    else {
      this.before = this.labels.slice();
      this.gesture = {kind: "stroke", last: at, value: this.tool === "eraser" ? 0 : this.value};
      this.stroke(at, at, this.gesture.value);
    }
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
        this.box = {left: gesture.from.x, top: gesture.from.y, right: at.x, bottom: at.y};
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
      box ? this.addBox(box) : this.addPoint(gesture.from.x, gesture.from.y, !gesture.take);
  }

  _beginPinch() {
    if (this.gesture?.kind === "stroke") {  // the first finger was not meant to paint
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
      b: () => this.useTool("brush"), e: () => this.useTool("eraser"), c: () => this.useTool("click"),
      0: () => this.choose(BACKGROUND), u: () => this.choose(UNDECIDED), f: () => this.fit(),
      "+": () => this.zoom(1.25), "=": () => this.zoom(1.25), "-": () => this.zoom(0.8),
      "[": () => this.setSize(Math.min(this.size - 1, this.size * 0.9)), "]": () => this.setSize(Math.max(this.size + 1, this.size * 1.1)),
    }[key];
    if (does) return does(), true;
    if (this.outline && key === "enter" && !event.target.matches("button")) return this.accept(), true;
    if (this.outline && key === "escape") return this.discard(), true;
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
    if (this.tool === "click") this.addPoint(x, y, !event.shiftKey && !this.takes);
    else if (event.shiftKey) this.removeBlob(x, y);
    else this.step(() => this.stroke(this.cursor, this.cursor, this.tool === "eraser" ? 0 : this.value));
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
