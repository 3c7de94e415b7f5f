// Step 3: the photos that were looked at, as a list with a large view beside it.

import {$, h, keyed, percent} from "/dom.js";

const SURE_ENOUGH = 0.2, MOST_NEXT = 5, DEEPEST = 12, DRAG = 5, BEAT = 125;  // milliseconds of a frame while a video plays

export class Results {
  // act: (name, values) => Promise; get: path => Promise of JSON; correct: photo => opens the editor
  constructor({act, get, correct}) {
    Object.assign(this, {act, get, correct});
    this.chosen = null;
    this.objects = false;
    this.unsure = false;
    this.view = {scale: 1, x: 0, y: 0};
    this._buildViewer();
    document.addEventListener("keydown", event => this._key(event));
  }

  show(state) {
    this.state = state;
    const {photos} = state;
    $("#results").hidden = !photos.length;
    $("#no-photos").hidden = photos.length > 0;
    if (!photos.some(photo => photo.key === this.chosen)) this.chosen = photos[0]?.key ?? null;
    // A stack or video is one card, and its frames are a strip below the large view.
    const heads = photos.filter((photo, index) => !photo.frame || photos.findIndex(other => other.frame?.stack === photo.frame.stack) === index);
    keyed($("#list"), heads, photo => photo.frame ? `stack-${photo.frame.stack}` : photo.key, photo => photo.frame ? this._stackStamp(photo) : this._stamp(photo),
      photo => photo.frame ? this._stackCard(photo) : this._card(photo));
    this._showSliders();
    this._showProgress();
    this._showEarlier();
    this._showNext();
    this._showChosen();
  }

  choose(key, focus = false) {
    if (this.playing) this._showPlay(false);
    this.chosen = key;
    this.fit();
    this.show(this.state);
    const {frame} = this.photo, card = $(`#list [data-key="${frame ? `stack-${frame.stack}` : key}"]`);
    card?.scrollIntoView({block: "nearest", inline: "nearest"});
    if (focus) card?.querySelector(".card").focus({preventScroll: true});
  }

  chooseStack(stack) {
    const first = this.state.photos.find(photo => photo.frame?.stack === stack);
    if (first) this.choose(first.key);
  }

  get photo() { return this.state?.photos.find(photo => photo.key === this.chosen) ?? null; }

  path(photo, file) { return `/api/${this.state.session}/photos/${photo.key}/${file}`; }

  // The frames of the stack or video that a photo is of, in order; none if it is an ordinary photo.
  framesOf(photo) { return photo?.frame ? this.state.photos.filter(other => other.frame?.stack === photo.frame.stack) : []; }

  // ---- The list

  _stamp(photo) {
    return [photo.stamp, photo.done, photo.corrected, photo.whole, photo.key === this.chosen,
      ...Object.values(photo.scores).map(each => each.present)].join();
  }

  _card(photo) {
    const isChosen = photo.key === this.chosen;
    return h("li", {},
      h("button", {type: "button", class: "card", "aria-current": isChosen ? "true" : false, onclick: () => this.choose(photo.key)},
        h("img", {src: this.path(photo, `small.jpg?${photo.stamp}`), alt: "", loading: "lazy", width: photo.width, height: photo.height}),
        h("span", {class: "card-text"}, h("b", {}, photo.name), this._verdict(photo))),
      h("button", {type: "button", class: "cross", "aria-label": `Remove ${photo.name}`, title: "Remove",
        onclick: () => this.act("remove-photo", {key: photo.key})}, "×"));
  }

  _stackStamp(head) {
    const frames = this.framesOf(head), shown = frames.find(photo => photo.key === this.chosen);
    return [(shown ?? head).key, (shown ?? head).stamp, Boolean(shown), frames.length, frames.filter(photo => photo.done || photo.corrected).length].join();
  }

  _stackCard(head) {
    const frames = this.framesOf(head), shown = frames.find(photo => photo.key === this.chosen), photo = shown ?? head, {file, stack} = head.frame;
    const done = frames.filter(each => each.done || each.corrected).length;
    return h("li", {},
      h("button", {type: "button", class: "card", "aria-current": shown ? "true" : false, onclick: () => this.choose(photo.key)},
        h("img", {src: this.path(photo, `small.jpg?${photo.stamp}`), alt: "", loading: "lazy", width: photo.width, height: photo.height}),
        h("span", {class: "card-text"}, h("b", {}, file), h("span", {class: "quiet"}, done < frames.length ? `${done} of ${frames.length} frames done` : `${frames.length} frames`))),
      h("button", {type: "button", class: "cross", "aria-label": `Remove ${file}`, title: "Remove all its frames", onclick: () => this.act("remove-stack", {stack})}, "×"));
  }

  _verdict(photo) {
    if (photo.whole) return h("span", {class: "quiet"}, `painted by you: ${photo.painted.join(", ") || "nothing here"}`);
    if (!photo.done) return h("span", {class: "quiet"}, this.state.examples.length ? "waiting" : "waiting for your first example");
    const present = this.state.classes.filter(each => photo.scores[each.name]?.present);
    const corrected = photo.corrected && h("span", {class: "quiet"}, "corrected by you");
    if (!present.length) return h("span", {class: "dots quiet"}, corrected || "nothing found");
    return h("span", {class: "dots"}, corrected, present.map(each => h("span", {style: {"--colour": each.colour}}, h("i"), each.name)));
  }

  _showNext() {
    const unsure = this.state.photos.filter(photo => photo.done && !photo.corrected && photo.uncertainty >= SURE_ENOUGH)
      .sort((a, b) => b.uncertainty - a.uncertainty).slice(0, MOST_NEXT);
    const stamp = unsure.map(photo => `${photo.key}/${photo.stamp}/${photo.uncertainty}`).join();
    if (stamp === this.nextStamp) return;
    this.nextStamp = stamp;
    $("#next-box").replaceChildren(...unsure.length ? [
      h("h3", {}, "Which photo should I label next?"),
      h("p", {class: "quiet"}, "The least sure come first. A click opens one where it would teach most."),
      h("div", {id: "next"}, unsure.map(photo => h("button", {
        type: "button", title: photo.name, "aria-label": `Label ${photo.name}, ${percent(photo.uncertainty)} unsure`,
        onclick: () => { this.choose(photo.key); this.correct(photo, placeOf(photo.unsureAt)); }},
        h("img", {src: this.path(photo, `small.jpg?${photo.stamp}`), alt: "", loading: "lazy"}),
        h("span", {}, `${percent(photo.uncertainty)} unsure`)))),
    ] : []);
  }

  // What the last correction did to the other photos, and the way back.
  _showEarlier() {
    const {earlier, search} = this.state, box = $("#earlier"), stamp = JSON.stringify([earlier, search.phase]);
    if (stamp === this.earlierStamp) return;
    this.earlierStamp = stamp;
    box.hidden = !earlier?.corrected || earlier.kept;
    if (box.hidden) return box.replaceChildren();
    const {worse, iou, changes, what} = earlier, isBusy = ["learning", "looking"].includes(search.phase);
    const button = (name, text, isUsual) => h("button", {type: "button", id: name, class: isUsual ? "primary" : "", onclick: () => this.act(name)}, text);
    const judged = iou && h("p", {class: worse ? "problem" : "quiet", title: "Mean share of overlap (IoU) on the examples that were there before, each found from the others"},
      worse ? "Your other examples are found less well with this correction " : "Your other examples are found as well as before ",
      h("small", {}, `${iou[0].toFixed(2)} → ${iou[1].toFixed(2)}`));
    const rows = changes.map(each => h("li", {}, h("button", {type: "button", onclick: () => this.choose(each.key)},
      h("b", {}, each.photo), ` ${each.name}: ${percent(each.before)} → ${percent(each.after)}`)));
    const says = isBusy ? "Looking at what this changes …" : rows.length ? "It changed these photos, the most changed first:" : "It changed no other photo by much.";
    box.classList.toggle("worse", worse);
    box.replaceChildren(h("h3", {}, `${what}.`), ...[judged].filter(Boolean), h("p", {class: "quiet"}, says), h("ul", {}, rows),
      h("div", {class: "row"}, button("keep", worse ? "Keep it anyway" : "Keep", !worse), button("step-back", "Step back", worse)));
  }

  // ---- Sliders and progress

  _showSliders() {
    const known = this.state.photos.length ? this.state.classes.filter(each => each.known) : [];
    const stamp = JSON.stringify([known.map(each => [each.number, each.name]), this.state.crisp]);
    if (stamp === this.sliderStamp) return;  // a slider that is being moved must stay
    this.sliderStamp = stamp;
    $("#sliders").replaceChildren(...known.length ? [
      h("p", {class: "quiet"}, "How sure must it be? Lower shows more, higher less."), ...known.map(each => this._slider(each)), this._crispSwitch()] : []);
  }

  _crispSwitch() {
    const why = this.canRefine ? "Large objects are outlined anew by MobileSAM. Small or many objects stay as they are."
      : "This needs MobileSAM, which is not on this machine yet. Choose Click in the editor to download it.";
    return h("label", {class: "switch", title: why},
      h("input", {type: "checkbox", role: "switch", id: "crisp", checked: this.canRefine && this.state.crisp, disabled: !this.canRefine,
        onchange: event => this.act("crisp", {value: event.target.checked})}),
      h("span", {}, "Crisp outlines", h("em", {}, why)));
  }

  _slider(each) {
    const shown = h("b", {}, percent(each.threshold));
    const label = h("label", {class: "score", style: {"--colour": each.colour, "--share": percent(each.threshold).replace(" ", "")}},
      h("span", {}, each.name),
      h("input", {type: "range", min: 0.02, max: 0.98, step: 0.02, value: each.threshold, "data-number": each.number,
        "aria-label": `Threshold of ${each.name}`, oninput: event => {
          const value = Number(event.target.value);
          shown.textContent = percent(value);
          label.style.setProperty("--share", `${100 * value}%`);
          clearTimeout(this.sliding);
          this.sliding = setTimeout(() => this.act("threshold", {number: each.number, value}), 60);
        }}), shown);
    return label;
  }

  _showProgress() {
    const {phase, done, count, problem} = this.state.search, left = this.state.photos.filter(photo => photo.waiting).length;
    const box = $("#progress"), stamp = JSON.stringify([phase, problem, phase === "stopped" && left]);
    if (stamp !== this.progressStamp) {  // only then: a button that is made anew all the time cannot be clicked
      this.progressStamp = stamp;
      const bar = h("span", {class: "bar"}, h("i"));
      const button = (name, text) => h("button", {type: "button", id: name, onclick: () => this.act(name)}, text);
      box.replaceChildren(...{
        learning: [h("span", {class: "bar unknown"}, h("i")), h("span", {}, "Learning from your examples")],
        looking: [bar, h("span", {class: "count"}), button("stop", "Stop")],
        refining: [bar, h("span", {class: "count"}), button("stop", "Stop")],
        stopped: left ? [h("span", {}, `Stopped: ${left} of ${this.state.photos.length} photos are left`), button("continue", "Continue")] : [],
        idle: problem ? [h("span", {class: "problem"}, problem)] : [],
      }[phase]);
    }
    if (!["looking", "refining"].includes(phase)) return;
    box.querySelector(".bar i").style.width = `${100 * done / Math.max(1, count)}%`;
    const now = Math.min(done + 1, count), what = phase === "looking" ? "Looking at photo" : "Making outlines crisp: photo";
    box.querySelector(".count").textContent = count ? `${what} ${now} of ${count}` : "Looking at your photos";
  }

  // ---- The large view

  _buildViewer() {
    const tool = (text, label, title, onclick) => h("button", {type: "button", title, "aria-label": label, onclick}, text);
    this.before = h("img", {alt: "", draggable: "false"});
    this.after = h("img", {alt: "", class: "after", draggable: "false"});
    this.stage = h("div", {class: "stage"}, this.before, this.after);
    this.window = h("div", {class: "window", tabindex: "0", role: "group", "aria-label": "Large view. Arrow keys go to other photos, H hides the masks."}, this.stage);
    this.slider = h("input", {type: "range", min: 0, max: 100, value: 0, "aria-label": "Before and after", oninput: () => this._split()});
    this.name = h("h3", {});
    this.notice = h("p", {class: "uploading quiet", id: "notice"});
    this.table = h("div", {class: "table-box", tabindex: "0", role: "group", "aria-label": "Measurements"});
    this.correctButton = h("button", {type: "button", id: "correct", class: "primary", onclick: () => this.correct(this.photo)}, "Correct this photo");
    this.noneButton = h("button", {type: "button", id: "none-here", title: "This photo shows none of the classes; that is learnt",
      onclick: () => this.act("none-here", {key: this.chosen})}, "None of these here");
    this.unsureSwitch = h("input", {type: "checkbox", role: "switch", id: "unsure", onchange: event => { this.unsure = event.target.checked; this._showChosen(); }});
    this.picked = h("div", {class: "picked row", role: "group", "aria-label": "This object", hidden: true});
    this.switch = h("input", {type: "checkbox", role: "switch", id: "objects", onchange: event => { this.objects = event.target.checked; this._showChosen(); }});
    $("#viewer").append(
      h("div", {class: "row viewer-head"}, tool("‹", "Previous photo", "Previous (←)", () => this.step(-1)), this.name,
        tool("›", "Next photo", "Next (→)", () => this.step(1))),
      this.notice, this.window, this._buildStrip(), this.picked,
      h("div", {class: "row viewer-tools"}, h("label", {class: "before-after"}, "Before", this.slider, "After"),
        h("span", {class: "group"}, tool("−", "Zoom out", "Zoom out (−)", () => this.zoom(0.8)), tool("Fit", "Fit the whole photo", "Fit (0)", () => this.fit()),
          tool("+", "Zoom in", "Zoom in (+)", () => this.zoom(1.25)))),
      h("div", {class: "row"}, this.correctButton, this.noneButton, h("label", {class: "switch"}, this.switch, h("span", {}, "Count single objects")),
        h("label", {class: "switch", title: "Stripes lie where the answer is unsure"}, this.unsureSwitch, h("span", {}, "Show where it is unsure"))),
      this.table);
    this.slider.value = 100;
    this._split();
    this._listen();
  }

  // ---- The frames of a stack or video

  _buildStrip() {
    this.playButton = h("button", {type: "button", id: "play", onclick: () => this.play(!this.playing)});
    this.frameSlider = h("input", {type: "range", id: "frame", min: 0, step: 1, "aria-label": "Frame", oninput: event => this.choose(this.framesOf(this.photo)[event.target.value].key)});
    this.frameName = h("output", {class: "quiet"});
    this.frames = h("ul", {id: "strip", "aria-label": "Frames"});
    this.strip = h("div", {class: "frames", hidden: true}, h("div", {class: "row"}, this.playButton, this.frameSlider, this.frameName), this.frames);
    this._showPlay(false);
    return this.strip;
  }

  _showStrip() {
    const frames = this.framesOf(this.photo), index = frames.indexOf(this.photo);
    this.strip.hidden = frames.length < 2;
    if (this.strip.hidden) return this.frames.replaceChildren();
    this.frameSlider.max = frames.length - 1;
    this.frameSlider.value = index;
    this.frameName.textContent = placeIn(this.photo.frame);
    keyed(this.frames, frames, photo => photo.key, photo => this._stamp(photo), photo => h("li", {},
      h("button", {type: "button", "aria-current": photo.key === this.chosen ? "true" : false, "aria-label": `${placeIn(photo.frame)}${photo.corrected ? ", painted by you" : photo.done ? "" : ", waiting"}`,
        class: photo.corrected ? "painted" : photo.done ? "" : "waiting", onclick: () => this.choose(photo.key)},
        h("img", {src: this.path(photo, `small.jpg?${photo.stamp}`), alt: "", loading: "lazy"}), h("span", {}, placeIn(photo.frame)))));
    const now = this.frames.children[index];
    this.frames.scrollLeft = now.offsetLeft - (this.frames.clientWidth - now.offsetWidth) / 2;
  }

  _showPlay(playing) {
    this.playing = playing;
    this.playButton.textContent = playing ? "Pause" : "Play";
    this.playButton.title = `${playing ? "Stop at this frame" : "Play the frames"} (space)`;
  }

  // Show one frame after the other, each when its picture is there; numbers and tables follow at the end.
  async play(playing) {
    const {photo} = this, frames = this.framesOf(photo), start = frames.indexOf(photo);
    this._showPlay(playing && frames.length > 1);
    if (!this.playing) return this.show(this.state);
    const turn = this.turn = {};
    for (let index = start === frames.length - 1 ? 0 : start + 1; this.playing && this.turn === turn && index < frames.length; index++) {
      const frame = this.state.photos.find(each => each.key === frames[index].key);
      if (!frame || this.photo?.frame?.stack !== frame.frame.stack) break;
      const began = performance.now(), [plain, drawn] = this._addresses(frame);
      await Promise.all([plain, drawn].map(address => { const image = new Image(); image.src = address; return image.decode().catch(() => {}); }));
      await new Promise(resolve => setTimeout(resolve, Math.max(0, BEAT - (performance.now() - began))));
      if (!this.playing || this.turn !== turn) return;
      this.chosen = frame.key;
      Object.assign(this.before, {src: plain});
      Object.assign(this.after, {src: drawn});
      this.name.textContent = frame.name;
      this.frameSlider.value = index;
      this.frameName.textContent = placeIn(frame.frame);
    }
    this._showPlay(false);
    this.show(this.state);
  }

  // The addresses of a photo without and with what was found on it.
  _addresses(photo) {
    const plain = this.path(photo, "photo.png");
    return [plain, photo.done || photo.corrected ? this.path(photo, `large.jpg?objects=${this.objects ? 1 : 0}&unsure=${this.unsure ? 1 : 0}&${photo.stamp}`) : plain];
  }

  async _showChosen() {
    const {photo} = this;
    if (this.playing) return;
    this._showStrip();
    this.shown?.(photo);  // for what else is about this photo
    if (!photo) { this.shownStamp = null; return; }
    const stamp = [photo.key, photo.stamp, photo.done, photo.corrected, this.objects, this.unsure].join();
    if (stamp === this.shownStamp) return;
    this.pick(null);
    this.shownStamp = stamp;
    this.name.textContent = photo.name;
    this.notice.textContent = photo.notice;
    this.window.style.setProperty("--ratio", `${photo.width} / ${photo.height}`);
    const [plain, drawn] = this._addresses(photo), found = photo.done || photo.corrected;
    if (this.before.getAttribute("src") !== plain) this.before.src = plain;
    if (this.after.getAttribute("src") !== drawn) this.after.src = drawn;
    this.correctButton.textContent = found ? "Correct this photo" : "Paint it as an example";
    this.noneButton.hidden = !found;
    this.after.alt = `${photo.name} with what was found on it`;
    if (!found) return this.table.replaceChildren(h("p", {class: "quiet"}, "Not looked at yet."));
    const rows = await this.get(this.path(photo, `result?objects=${this.objects ? 1 : 0}`)).catch(() => null);
    if (rows && stamp === this.shownStamp) this.table.replaceChildren(this._table(rows, photo));
  }

  _table(rows, photo) {
    const head = ["Class", "Score", "Share", "Area (px)", ...this.objects ? ["Objects", "Mean"] : []];
    const classes = new Map(this.state.classes.map(each => [each.name, each]));
    const cell = (text, isNumber = true) => h("td", {class: isNumber ? "number" : ""}, text);
    const whole = value => Math.round(value).toLocaleString("en");
    return h("table", {}, h("thead", {}, h("tr", {}, head.map(text => h("th", {scope: "col", title: text === "Mean" ? "Mean area of an object in pixels" : null}, text)))),
      h("tbody", {}, rows.map(row => h("tr", {class: row.area ? "" : "absent"},
        h("th", {scope: "row", style: {"--colour": classes.get(row.name)?.colour ?? "gray"}}, h("i"), row.name),
        photo.whole ? cell("painted", false) : h("td", {}, this._score(row, classes.get(row.name))),
        cell(row.area ? percent(row.share) : "–"), cell(row.area ? whole(row.area) : "–"),
        ...this.objects ? [cell(String(row.objects.length)), cell(row.objects.length ? whole(row.objects.reduce((sum, area) => sum + area, 0) / row.objects.length) : "–")] : []))));
  }

  _score(row, shown) {
    if (row.score === null) return "–";
    return h("span", {class: "score-bar", style: {"--colour": shown?.colour ?? "gray"}},
      h("span", {class: "bar"}, h("i", {style: {width: `${100 * row.score}%`}}), h("u", {style: {left: `${100 * (shown?.presence ?? 0.5)}%`}})),
      h("b", {}, percent(row.score)));
  }

  step(by) {
    const {photos} = this.state, index = photos.findIndex(photo => photo.key === this.chosen) + by;
    if (photos[index]) this.choose(photos[index].key);
  }

  // A place of the photo was clicked, in shares of its sides: offer to say that the object there is wrong.
  pick(place) {
    const {photo} = this;
    this.picked.hidden = !place || !photo?.done;
    if (this.picked.hidden) return this.picked.replaceChildren();
    const button = (id, text, title, does) => h("button", {type: "button", id, title, onclick: () => { this.pick(null); does(); }}, text);
    this.picked.replaceChildren(h("span", {class: "quiet"}, "The object that you clicked:"),
      button("not-this", "Not this", "It is none of the classes; that is learnt at once", () => this.act("not-this", {key: photo.key, ...place})),
      button("correct-here", "Correct it", "Open the editor here", () => this.correct(photo, place)),
      button("pick-nothing", "It is right", "Close", () => {}));
  }

  // Where on the photo an event is, in shares of its sides; null beside it.
  _placeAt(event) {
    const box = this.window.getBoundingClientRect(), {photo, view} = this;
    const fitted = Math.min(box.width / photo.width, box.height / photo.height);
    const inside = (at, side, length, shift) => ((at / side - shift) / view.scale * side - (side - length * fitted) / 2) / (length * fitted);
    const x = inside(event.clientX - box.left, box.width, photo.width, view.x), y = inside(event.clientY - box.top, box.height, photo.height, view.y);
    return x >= 0 && y >= 0 && x < 1 && y < 1 ? {x, y} : null;
  }

  _split() { this.after.style.clipPath = `inset(0 ${100 - this.slider.value}% 0 0)`; }

  zoom(factor, x = 0.5, y = 0.5) {
    const scale = Math.min(Math.max(this.view.scale * factor, 1), DEEPEST), change = scale / this.view.scale;
    // x and y are shares of the window; the photo under them stays where it is.
    this._look(scale, x - (x - this.view.x) * change, y - (y - this.view.y) * change);
  }

  fit() { this._look(1, 0, 0); }

  _look(scale, x, y) {
    const keep = value => Math.min(0, Math.max(value, 1 - scale));
    this.view = {scale, x: keep(x), y: keep(y)};
    this.stage.style.transform = `translate(${100 * this.view.x}%, ${100 * this.view.y}%) scale(${scale})`;
  }

  _listen() {
    let last = null, start = null;
    const share = event => {
      const box = this.window.getBoundingClientRect();
      return [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
    };
    this.window.addEventListener("wheel", event => {
      if (!event.ctrlKey && this.view.scale === 1 && event.deltaY > 0) return;  // the page scrolls on
      event.preventDefault();
      this.zoom(Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.0015)), ...share(event));
    }, {passive: false});
    this.window.addEventListener("pointerdown", event => { last = share(event); start = event; this.window.setPointerCapture(event.pointerId); });
    this.window.addEventListener("pointermove", event => {
      if (!last) return;
      const now = share(event), {scale, x, y} = this.view;
      this._look(scale, x + now[0] - last[0], y + now[1] - last[1]);
      last = now;
    });
    this.window.addEventListener("pointerup", event => {
      if (start && this.photo && Math.hypot(event.clientX - start.clientX, event.clientY - start.clientY) < DRAG) this.pick(this._placeAt(event));
    });
    for (const name of ["pointerup", "pointercancel"]) this.window.addEventListener(name, () => { last = start = null; });
  }

  _key(event) {
    if (!this.photo || event.ctrlKey || event.metaKey || event.altKey || $("dialog[open]")) return;
    if (event.target.matches("input, select, textarea")) return;
    const inside = $("#results").contains(event.target), {key} = event;
    if (!inside && event.target !== document.body) return;
    const does = {ArrowRight: () => this.step(1), ArrowLeft: () => this.step(-1), "+": () => this.zoom(1.25), "=": () => this.zoom(1.25),
      "-": () => this.zoom(0.8), 0: () => this.fit(),
      " ": event.target.matches("button") || this.strip.hidden ? null : () => this.play(!this.playing), h: () => { this.slider.value = Number(this.slider.value) > 50 ? 0 : 100; this._split(); }}[key];
    if (does) { event.preventDefault(); does(); }
  }
}

// Where a frame is in its file, in words.
function placeIn({z, t}) { return [t !== null && (z === null ? `${t}` : `time ${t}`), z !== null && `depth ${z}`].filter(Boolean).join(", "); }

function placeOf(pair) { return pair && {x: pair[0], y: pair[1]}; }
