"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const { study, ui, scale } = data;
  const groups = new Map(data.groups.map((group) => [group.id, group]));
  const items = new Map(data.items.map((item) => [item.id, item]));
  const total = data.items.length * data.groups.reduce((sum, group) => sum + group.questions.length, 0);
  const prefix = `bcs-study:${study}:${data.questionnaire.digest}:`;
  const at = (id) => document.getElementById(id);
  const say = (key, values = {}) => ui[key].replace(/\{(\w+)\}/g, (whole, name) => (name in values ? values[name] : whole));

  let state = null; // what is kept: see fresh()
  let question = 0; // position of the current question in its part
  let since = 0; // when it became current, on the clock that stops while the page is hidden
  let hiddenFor = 0;
  let hiddenSince = null;

  // --- order: decided by study and rater alone, so that it can be checked afterwards ------------------------------

  // 32-bit FNV-1a of a text seeds a xorshift generator; the first eight numbers are thrown away.
  function random(text) {
    let x = 0x811c9dc5;
    for (const byte of new TextEncoder().encode(text)) x = Math.imul(x ^ byte, 0x01000193) >>> 0;
    x = x || 1;
    const next = () => {
      x = (x ^ (x << 13)) >>> 0;
      x = (x ^ (x >>> 17)) >>> 0;
      x = (x ^ (x << 5)) >>> 0;
      return x;
    };
    for (let i = 0; i < 8; i += 1) next();
    return next;
  }

  function shuffled(list, next) {
    const out = [...list];
    for (let i = out.length - 1; i > 0; i -= 1) {
      const j = next() % (i + 1);
      [out[i], out[j]] = [out[j], out[i]];
    }
    return out;
  }

  // Pairs of one original do not follow each other, if a hundred tries find such an order.
  function itemOrder(rater) {
    const next = random(`${study}|${rater}|items`);
    let order = [];
    for (let i = 0; i < 100; i += 1) {
      order = shuffled([...items.keys()].sort(), next);
      if (order.every((id, k) => k === 0 || items.get(id).original !== items.get(order[k - 1]).original)) break;
    }
    return order;
  }

  const groupOrder = (rater) => shuffled([...groups.keys()].sort(), random(`${study}|${rater}|groups`));

  // --- what is kept in the browser ---------------------------------------------------------------------------------

  function fresh(rater) {
    const bytes = crypto.getRandomValues(new Uint8Array(12));
    return {
      rater,
      submission: Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join(""),
      started: new Date().toISOString(),
      item_order: itemOrder(rater),
      group_order: groupOrder(rater),
      answers: {},
      step: 0,
      comment: "",
    };
  }

  function stored(key) {
    try {
      const value = JSON.parse(localStorage.getItem(key));
      const whole = value && typeof value.rater === "string" && value.answers && Array.isArray(value.item_order);
      return whole && value.item_order.every((id) => items.has(id)) ? value : null;
    } catch {
      return null;
    }
  }

  function sessions() {
    try {
      return Object.keys(localStorage).filter((key) => key.startsWith(prefix)).sort().map(stored).filter(Boolean);
    } catch {
      return [];
    }
  }

  function keep() {
    try {
      localStorage.setItem(prefix + state.rater, JSON.stringify(state));
    } catch {
      warn(say("not_saved"));
    }
  }

  function warn(text) {
    at("warning").textContent = text;
    at("warning").hidden = false;
  }

  // --- answers -----------------------------------------------------------------------------------------------------

  const steps = () => state.item_order.length * state.group_order.length;
  const itemAt = (step) => items.get(state.item_order[Math.floor(step / state.group_order.length)]);
  const groupAt = (step) => groups.get(state.group_order[step % state.group_order.length]);
  const answerOf = (item, id) => (state.answers[item] || {})[id];
  const openIn = (step) => groupAt(step).questions.filter((one) => !answerOf(itemAt(step).id, one.id));
  const countOf = (answers) => Object.values(answers).reduce((sum, given) => sum + Object.keys(given).length, 0);
  const clock = () => performance.now() - hiddenFor;

  function answer(position, value) {
    const item = itemAt(state.step).id;
    const one = groupAt(state.step).questions[position];
    const now = clock();
    const before = answerOf(item, one.id);
    state.answers[item] = state.answers[item] || {};
    if (!before) state.answers[item][one.id] = { value, ms: Math.round(now - since), changes: 0 };
    else if (before.value !== value) Object.assign(before, { value, changes: before.changes + 1 });
    keep();
    const last = position === groupAt(state.step).questions.length - 1;
    const open = openIn(state.step);
    if (!last) show(position + 1);
    else if (open.length) show(groupAt(state.step).questions.indexOf(open[0]));
    else go(state.step + 1);
  }

  // --- pages -------------------------------------------------------------------------------------------------------

  function only(id) {
    for (const section of ["intro", "rating", "done"]) at(section).hidden = section !== id;
  }

  function intro() {
    state = null;
    only("intro");
    const list = at("sessions");
    list.replaceChildren();
    for (const one of sessions()) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = say("resume", { rater: one.rater, done: countOf(one.answers), total });
      button.addEventListener("click", () => begin(one));
      list.append(button);
    }
    at("earlier").hidden = !list.children.length;
  }

  function begin(session) {
    state = session;
    keep();
    at("comment").value = state.comment;
    only("rating");
    go(Math.min(state.step, steps()));
  }

  function go(step) {
    at("unanswered").textContent = "";
    state.step = Math.max(0, step);
    keep();
    if (state.step >= steps()) {
      finish();
      return;
    }
    only("rating");
    const item = itemAt(state.step);
    for (const [id, key] of [["original", item.original], ["reconstruction", item.reconstruction]]) {
      const picture = at(id).firstElementChild;
      if (picture.dataset.key !== key) {
        picture.dataset.key = key;
        picture.src = data.images[key];
        at("pictures").classList.remove("fresh");
        void at("pictures").offsetWidth; // starts the animation anew
        at("pictures").classList.add("fresh");
      }
    }
    const group = groupAt(state.step);
    at("group").textContent = group.title;
    at("hint").textContent = group.hint;
    at("questions").replaceChildren(...group.questions.map(fieldset));
    const perItem = state.group_order.length;
    at("where").textContent = say("pair", { n: Math.floor(state.step / perItem) + 1, total: items.size });
    at("part").textContent = say("part", { n: (state.step % perItem) + 1, total: perItem });
    at("back").disabled = state.step === 0;
    at("next").textContent = say(state.step === steps() - 1 ? "review" : "next");
    const open = openIn(state.step);
    show(open.length ? group.questions.indexOf(open[0]) : 0);
  }

  function fieldset(one, position) {
    const box = document.createElement("fieldset");
    box.tabIndex = -1;
    const legend = document.createElement("legend");
    legend.textContent = one.text;
    const options = document.createElement("div");
    options.className = "options";
    scale.options.forEach((option, k) => options.append(choice(position, option.value, option.label, k + 1)));
    if (scale.cannot_say) options.append(choice(position, null, scale.cannot_say, 0));
    box.append(legend, options);
    return box;
  }

  function choice(position, value, label, key) {
    const button = document.createElement("button");
    button.type = "button";
    button.dataset.key = String(key);
    if (value === null) button.className = "apart";
    const hint = document.createElement("kbd");
    hint.setAttribute("aria-hidden", "true");
    hint.textContent = String(key);
    button.append(hint, label);
    button.addEventListener("click", () => answer(position, value));
    return button;
  }

  function show(position) {
    question = position;
    since = clock();
    const item = itemAt(state.step).id;
    groupAt(state.step).questions.forEach((one, k) => {
      const box = at("questions").children[k];
      const given = answerOf(item, one.id);
      box.classList.toggle("current", k === position);
      for (const button of box.querySelectorAll("button")) {
        const value = button.dataset.key === "0" ? null : scale.options[Number(button.dataset.key) - 1].value;
        button.setAttribute("aria-pressed", String(Boolean(given) && given.value === value));
      }
    });
    const done = countOf(state.answers);
    at("progress").max = total;
    at("progress").value = done;
    at("count").textContent = say("answered", { done, total });
    const current = at("questions").children[position];
    current.focus({ preventScroll: true });
    current.scrollIntoView({ block: "nearest" });
  }

  function forward() {
    if (openIn(state.step).length) {
      at("unanswered").textContent = say("please_answer");
      show(groupAt(state.step).questions.indexOf(openIn(state.step)[0]));
    } else go(state.step + 1);
  }

  function finish() {
    only("done");
    const missing = total - countOf(state.answers);
    at("missing").hidden = !missing;
    at("missing-title").textContent = say("missing_title", { missing, total });
    at("missing-list").replaceChildren(...state.item_order.flatMap(missingIn));
    at("download").textContent = say(missing ? "download_anyway" : "download");
    at("downloaded").textContent = "";
    at("forget").textContent = say("forget");
    at("forget").dataset.sure = "";
    at("copy").value = text();
    at("done").querySelector("h1").focus();
    window.scrollTo(0, 0);
  }

  function missingIn(id, k) {
    const first = k * state.group_order.length;
    const parts = state.group_order.map((_, part) => first + part).filter((step) => openIn(step).length);
    if (!parts.length) return [];
    const entry = document.createElement("li");
    const button = document.createElement("button");
    button.type = "button";
    const missing = parts.reduce((sum, step) => sum + openIn(step).length, 0);
    button.textContent = say("missing_item", { n: k + 1, missing });
    button.addEventListener("click", () => go(parts[0]));
    entry.append(button);
    return [entry];
  }

  function text() {
    const { step, ...given } = state;
    const missing = total - countOf(state.answers);
    const head = { format: data.format, version: data.version, study, questionnaire: data.questionnaire };
    const saved = new Date().toISOString();
    return JSON.stringify({ ...head, ...given, saved, complete: missing === 0, missing }, null, 1) + "\n";
  }

  function download() {
    const name = `ratings-${state.rater}.json`;
    const url = URL.createObjectURL(new Blob([text()], { type: "application/json" }));
    const link = document.createElement("a");
    link.href = url;
    link.download = name;
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(url), 10000);
    at("downloaded").textContent = say("downloaded", { file: name });
  }

  // --- what people do ----------------------------------------------------------------------------------------------

  at("begin").addEventListener("submit", (event) => {
    event.preventDefault();
    const rater = at("rater").value.trim().toLowerCase();
    const bad = !/^[a-z0-9_.-]{1,32}$/.test(rater) ? "rater" : !at("consent").checked ? "consent" : "";
    at("problem").textContent = bad && say(`${bad}_bad`);
    if (bad) at(bad).focus();
    else begin(stored(prefix + rater) || fresh(rater));
  });
  at("back").addEventListener("click", () => go(state.step - 1));
  at("next").addEventListener("click", forward);
  at("again").addEventListener("click", () => go(steps() - 1));
  at("download").addEventListener("click", download);
  at("comment").addEventListener("input", () => {
    state.comment = at("comment").value;
    at("copy").value = text();
    keep();
  });
  at("forget").addEventListener("click", () => {
    if (!at("forget").dataset.sure) {
      at("forget").dataset.sure = "yes";
      at("forget").textContent = say("forget_sure");
      return;
    }
    localStorage.removeItem(prefix + state.rater);
    intro();
    warn(say("forgotten"));
  });
  for (const [id, name] of [["original", ui.original], ["reconstruction", ui.reconstruction]]) {
    at(id).setAttribute("aria-label", say("enlarge", { name }));
    at(id).addEventListener("click", () => {
      at("large").querySelector("img").src = at(id).firstElementChild.src;
      at("large").querySelector("img").alt = name;
      at("large-name").textContent = name;
      at("large").showModal();
    });
  }
  at("close").addEventListener("click", () => at("large").close());
  at("large").addEventListener("click", (event) => event.target === at("large") && at("large").close());

  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, textarea");
    if (!state || at("rating").hidden || at("large").open || typing || event.ctrlKey || event.metaKey || event.altKey) return;
    const questions = groupAt(state.step).questions.length;
    const digit = /^[0-9]$/.test(event.key) ? Number(event.key) : -1;
    if (digit > 0 && digit <= scale.options.length) {
      if (!event.repeat) answer(question, scale.options[digit - 1].value);
    } else if (digit === 0 && scale.cannot_say) {
      if (!event.repeat) answer(question, null);
    } else if (event.key === "ArrowDown") show(Math.min(question + 1, questions - 1));
    else if (event.key === "ArrowUp") show(Math.max(question - 1, 0));
    else if (event.key === (data.dir === "rtl" ? "ArrowLeft" : "ArrowRight")) go(state.step + 1);
    else if (event.key === (data.dir === "rtl" ? "ArrowRight" : "ArrowLeft")) go(state.step - 1);
    else if (event.key === "Enter" && !event.target.closest("button")) {
      if (!event.repeat) forward();
    } else return;
    event.preventDefault();
  });
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) hiddenSince = performance.now();
    else if (hiddenSince !== null) {
      hiddenFor += performance.now() - hiddenSince;
      hiddenSince = null;
    }
  });
  window.addEventListener("storage", (event) => {
    if (state && event.key === prefix + state.rater) warn(say("other_window"));
  });

  at("keys").textContent = say("keys", {
    options: scale.options.map((_, k) => k + 1).join(" "),
    cannot_say: scale.cannot_say ? say("keys_cannot_say") : "",
  });
  intro();
})();
