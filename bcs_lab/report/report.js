// The report's behaviour: tabs, galleries, the table of pairs and the sheet of one pair. What pages share is in page.js.
// All text from the run is set as textContent; nothing is ever parsed as HTML.
(() => {
  "use strict";
  const PAGE = 50;
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const images = read("images");
  const { el, flip, edges } = bcsPage;

  const two = (value) => (value === null || value === undefined ? "–" : (value / 1000).toFixed(2).replace("-", "−"));
  const count = (value) => value.toLocaleString("en");
  const plain = (text) => text.replaceAll("_", " ");

  // --- one pair ------------------------------------------------------------------------------------------------------

  const NO = [213, 94, 0], SOMEWHAT = [240, 228, 66], YES = [0, 114, 178];
  function colour(share) {
    const [from, to, part] = share < 0.5 ? [NO, SOMEWHAT, 2 * share] : [SOMEWHAT, YES, 2 * share - 1];
    const rgb = from.map((value, i) => Math.round(value + part * (to[i] - value)));
    const light = (0.299 * rgb[0] + 0.587 * rgb[1] + 0.114 * rgb[2]) / 255;
    return { background: `rgb(${rgb.join(" ")})`, color: light > 0.52 ? "#1f2430" : "#ffffff" };
  }
  function cell(share, text, title) {
    if (share === null) return el("span", { class: "cell none", title: title || "not answered" }, "·");
    return el("span", { class: "cell", title, style: colour(share) }, text);
  }
  const LETTERS = { 0: "n", 1: "s", 2: "y" }, WORDS = { 0: "no", 1: "somewhat", 2: "yes" };
  const level = (value) => (value === null ? "–" : value === 0 ? "0" : value === 1000 ? "1" : (value / 1000).toFixed(2).replace(/^0/, "").replace(/(\.\d)0$/, "$1"));

  /** Rows of answers of one pair: name, and for each question share, short text and title. */
  function answerRows(run, row, short) {
    const { rows, questions, teachers } = run;
    const out = [];
    const of = (values, name, what) => values && values[row] && out.push({
      name,
      cells: values[row].map((value, q) => [value === null ? null : value / 1000, short ? level(value) : two(value),
        value === null ? null : `${questions[q].id} ${questions[q].name}: ${what} ${two(value)}`]),
    });
    of(rows.p, "predicted", "predicted");
    of(rows.t, "consensus", "consensus");
    const given = rows.a && rows.a[row];
    teachers.forEach((teacher, t) => {
      if (!given) return;
      const own = [...given.slice(t * questions.length, (t + 1) * questions.length)];
      out.push({
        name: teacher.used ? teacher.name : `(${teacher.name})`,
        cells: own.map((code, q) => [code === "-" ? null : Number(code) / 2, short ? LETTERS[code] : WORDS[code],
          code === "-" ? null : `${questions[q].id} ${questions[q].name}: ${teacher.name} says ${WORDS[code]}`]),
      });
    });
    of(rows.truth, "truth", "the truth is");
    return out;
  }

  function strip(run, row) {
    const { questions } = run;
    const gap = (q) => (q && questions[q].group !== questions[q - 1].group ? "gap" : null);
    const head = el("tr", {}, el("th", {}), ...questions.map((item, q) => el("th", { scope: "col", title: item.name, class: gap(q) }, item.id)));
    const body = answerRows(run, row, true).map((item) =>
      el("tr", {}, el("th", { scope: "row", title: item.name }, item.name),
        ...item.cells.map(([share, text, title], q) => el("td", { class: gap(q) }, cell(share, text, title)))));
    return el("div", { class: "stripwrap" }, el("table", { class: "answers" }, el("thead", {}, head), el("tbody", {}, ...body)));
  }

  function full(run, row) {
    const narrow = matchMedia("(max-width: 46rem)").matches;
    const short = narrow ? { predicted: "pred.", consensus: "cons." } : {};
    const items = answerRows(run, row, narrow);
    const head = el("tr", {}, el("th", { scope: "col" }, "question"), ...items.map((item) => el("th", { scope: "col", title: item.name }, short[item.name] || item.name)));
    const spread = run.rows.sd && run.rows.sd[row];
    const body = run.questions.map((question, q) =>
      el("tr", { class: question.group }, el("th", { scope: "row" }, `${question.id} `, el("span", { class: "small" }, question.name)),
        ...items.map((item, i) => {
          const [share, text, title] = item.cells[q];
          const more = i === 0 && spread && spread[q] !== null ? `${title}, standard deviation over the members ${two(spread[q])}` : title;
          return el("td", {}, cell(share, text, more));
        })));
    return el("div", { class: "scroll" }, el("table", { class: "full" }, el("thead", {}, head), el("tbody", {}, ...body)));
  }

  function scoreLine(run, row, axis) {
    const own = run.rows.ax[axis.key];
    const value = own.v[row], low = own.lo[row], high = own.hi[row], goal = own.t[row];
    const per = (number) => `${number / 10}%`;
    const track = el("span", { class: "track" });
    if (low !== null && high !== null)
      track.append(el("i", { class: `range ${axis.kind}`, style: { left: per(low), width: per(high - low) } }));
    if (value !== null) track.append(el("i", { class: `dot ${axis.kind}`, style: { left: per(value) } }));
    if (goal !== null) track.append(el("i", { class: "goal", style: { left: per(goal) } }));
    const range = low !== null && high !== null ? ` (${two(low)}–${two(high)})` : own.sd[row] !== null ? ` ± ${two(own.sd[row])}` : "";
    const said = `${axis.name} ${two(value)}${range}${goal === null ? "" : `, consensus ${two(goal)}`}`;
    return el("div", { class: "score", title: said }, el("span", {}, axis.name), track, el("span", {}, `${two(value)}${range}`));
  }

  function chips(run, row) {
    const { rows } = run;
    const out = [];
    const regime = run.regimes[rows.g[row]];
    if (regime) out.push(el("span", { class: "chip" }, el("span", { class: `swatch ${regime.code}` }), regime.name));
    const goal = run.regimes[rows.tg[row]];
    if (goal && goal !== regime) out.push(el("span", { class: "chip" }, el("span", { class: `swatch ${goal.code}` }), `consensus ${goal.name}`));
    for (const [name, values] of Object.entries(rows.metrics))
      if (values[row] !== null) out.push(el("span", { class: "chip" }, `${name} ${two(values[row])}`));
    if (rows.ood[row] === "1") out.push(el("span", { class: "chip alert", title: "far from the training images" }, "out of distribution"));
    return el("div", { class: "chips" }, ...out);
  }

  const title = (run, row) => plain(run.concepts[run.rows.c[row]] || run.rows.id[row]);
  const origin = (run, row) => [run.methods[run.rows.m[row]], run.subjects[run.rows.s[row]], run.parts[run.rows.part[row]], run.rows.id[row]].filter(Boolean).join(" · ");

  function pictures(run, row, action) {
    const places = run.rows.img[row] || [null, null];
    const shown = places.map((place, i) => {
      const name = i ? "decoded" : "seen";
      const what = `${name}: ${title(run, row)}`;
      const node = place === null || place === undefined
        ? el("span", { class: "nopicture" }, run.pictures ? "not in this file" : "no picture")
        : el("img", { src: images[place], alt: what, loading: "lazy", decoding: "async" });
      return el("figure", {}, node, el("figcaption", {}, name));
    });
    if (!action) return el("div", { class: "pictures" }, ...shown);
    return el("button", { class: "pictures", type: "button", "aria-label": `Open ${title(run, row)}, ${run.rows.id[row]}`, on: { click: action } }, ...shown);
  }

  function reasons(run, row, open) {
    const given = run.rows.r[row];
    if (!given) return run.teachers.length ? el("p", { class: "small" }, run.reasons ? "The rationales of this pair are not in this file (size limit)." : "No rationales are known.") : null;
    const list = el("dl", { class: "reasons" });
    const details = el("details", { open }, el("summary", {}, "Rationales"), list);
    const fill = () => {
      if (list.childNodes.length) return;
      run.questions.forEach((question, q) => {
        const said = run.teachers.map((teacher, t) => [teacher.name, run.texts[given[t * run.questions.length + q]]]).filter(([, text]) => text);
        if (!said.length) return;
        list.append(el("dt", {}, `${question.id} ${question.name}`));
        for (const [name, text] of said) list.append(el("dd", {}, el("b", {}, `${name}: `), text));
      });
    };
    details.addEventListener("toggle", fill);
    if (open) fill();
    return details;
  }

  // --- the sheet of one pair -----------------------------------------------------------------------------------------

  const sheet = document.getElementById("sheet");
  let around = null; // what the sheet walks through: { run, order, at }
  function show(run, order, at) {
    around = { run, order, at };
    const row = order[at];
    const step = (by, label, sign) => el("button", { class: "button", type: "button", "aria-label": label, disabled: !(at + by in order), on: { click: () => walk(by) } }, sign);
    sheet.replaceChildren(
      el("header", {},
        el("h3", { id: "sheet-title" }, title(run, row), el("small", {}, origin(run, row))),
        step(-1, "Previous pair", "←"), step(1, "Next pair", "→"),
        el("button", { class: "button", type: "button", "aria-label": "Close", on: { click: () => sheet.close() } }, "✕")),
      el("div", { class: "sheet" },
        el("div", { class: "side" }, pictures(run, row), ...run.axes.map((axis) => scoreLine(run, row, axis)), chips(run, row),
          el("p", { class: "small" }, "Dot: predicted. Bar: interval. Diamond: consensus of the teachers.")),
        el("div", {}, full(run, row), reasons(run, row, false))));
    if (!sheet.open) sheet.showModal();
    sheet.scrollTop = 0;
  }
  function walk(by) {
    if (around && around.at + by in around.order) show(around.run, around.order, around.at + by);
  }
  sheet.addEventListener("keydown", (event) => {
    if (event.key === "ArrowRight" || event.key === "j") { walk(1); event.preventDefault(); }
    if (event.key === "ArrowLeft" || event.key === "k") { walk(-1); event.preventDefault(); }
  });
  for (const dialog of document.querySelectorAll("dialog"))
    dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });

  const help = document.getElementById("help");
  document.getElementById("help-open").addEventListener("click", () => help.showModal());
  document.getElementById("help-close").addEventListener("click", () => help.close());

  // --- a run: galleries and the table of its pairs -------------------------------------------------------------------

  function galleries(run, section) {
    const place = section.querySelector("[data-galleries]");
    for (const gallery of run.galleries) {
      const cards = gallery.rows.map((row, at) =>
        el("article", { class: "card", "data-pair": run.rows.id[row] },
          pictures(run, row, () => show(run, gallery.rows, at)),
          el("div", {}, el("h4", {}, title(run, row)), el("div", { class: "sub" }, origin(run, row))),
          ...run.axes.map((axis) => scoreLine(run, row, axis)), chips(run, row), strip(run, row), reasons(run, row, false)));
      place.append(el("h3", {}, gallery.title), el("p", { class: "how" }, gallery.lead), el("div", { class: "cards", "data-gallery": gallery.key }, ...cards));
    }
  }

  function pairTable(run, section) {
    const { rows } = run;
    const n = rows.id.length;
    const text = Array.from({ length: n }, (_, i) =>
      `${rows.id[i]} ${run.concepts[rows.c[i]]} ${plain(run.concepts[rows.c[i]])} ${run.methods[rows.m[i]]}`.toLowerCase());
    const axis = (key) => rows.ax[key];
    const number = (values) => ({ value: (i) => values[i], show: (i) => two(values[i]) });
    const named = (list, values) => ({ value: (i) => list[values[i]], show: (i) => list[values[i]] || "–", left: true });
    const some = (values) => values.some((value) => value !== null);
    const columns = [
      { head: "pair", value: (i) => rows.id[i], left: true },
      { head: "concept", ...named(run.concepts, rows.c), show: (i) => plain(run.concepts[rows.c[i]]) || "–" },
      run.methods.length > 1 || run.methods[0] ? { head: "method", ...named(run.methods, rows.m) } : null,
      run.parts.length > 1 ? { head: "part", ...named(run.parts, rows.part) } : null,
      { head: "regime", value: (i) => rows.g[i], left: true, regime: true },
      { head: "T-PAS", ...number(axis("t_pas").v) },
      { head: "T-SAS", ...number(axis("t_sas").v) },
      some(axis("t_pas").sd) ? { head: "spread", title: "standard deviation over the members, the larger of both axes",
        value: (i) => Math.max(axis("t_pas").sd[i], axis("t_sas").sd[i]), show: (i) => two(Math.max(axis("t_pas").sd[i], axis("t_sas").sd[i])) } : null,
      some(axis("t_pas").t) ? { head: "teachers P", title: "T-PAS of the teachers' consensus", ...number(axis("t_pas").t) } : null,
      some(axis("t_sas").t) ? { head: "teachers S", title: "T-SAS of the teachers' consensus", ...number(axis("t_sas").t) } : null,
      ...Object.entries(rows.metrics).map(([name, values]) => ({ head: name.split(" ")[0], title: name, ...number(values) })),
    ].filter(Boolean);

    const find = (name) => section.querySelector(`[data-filter="${name}"]`);
    const controls = { text: find("text"), method: find("method"), regime: find("regime"), part: find("part"), ood: find("ood") };
    const fill = (select, names) => select && names.forEach((name, i) => name && select.append(el("option", { value: String(i) }, name)));
    fill(controls.method, run.methods);
    fill(controls.regime, run.regimes.map((item) => item && item.name));
    fill(controls.part, run.parts);
    if (controls.part && run.part !== null) controls.part.value = String(run.part);

    const state = { order: [], sort: 0, up: true, page: 0, current: 0 };
    const status = section.querySelector("[data-count]"), table = section.querySelector("[data-pairs]");
    const body = el("tbody");
    const heads = columns.map((column, c) => {
      const th = el("th", { scope: "col", class: column.left ? "left" : null },
        el("button", { type: "button", title: column.title, on: { click: () => sortBy(c) } }, column.head));
      return th;
    });
    table.append(el("thead", {}, el("tr", {}, ...heads)), body);

    function sortBy(c) {
      state.up = state.sort === c ? !state.up : Boolean(columns[c].left);
      state.sort = c;
      update();
    }
    function update() {
      const wanted = controls.text.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
      const chosen = (control) => (control && control.value !== "" ? Number(control.value) : null);
      const method = chosen(controls.method), regime = chosen(controls.regime), part = chosen(controls.part);
      const ood = controls.ood && controls.ood.checked;
      const order = [];
      for (let i = 0; i < n; i++) {
        if (method !== null && rows.m[i] !== method) continue;
        if (regime !== null && rows.g[i] !== regime) continue;
        if (part !== null && rows.part[i] !== part) continue;
        if (ood && rows.ood[i] !== "1") continue;
        if (wanted.every((word) => text[i].includes(word))) order.push(i);
      }
      const { value } = columns[state.sort], sign = state.up ? 1 : -1;
      order.sort((a, b) => {
        const x = value(a), y = value(b);
        // What is undefined comes last, whatever the direction.
        if (x === null || y === null) return (x === null) - (y === null) || a - b;
        return x < y ? -sign : x > y ? sign : a - b;
      });
      state.order = order;
      state.page = 0;
      state.current = 0;
      heads.forEach((th, c) => {
        if (c === state.sort) th.setAttribute("aria-sort", state.up ? "ascending" : "descending");
        else th.removeAttribute("aria-sort");
      });
      draw();
    }
    function draw() {
      const pages = Math.max(1, Math.ceil(state.order.length / PAGE));
      state.page = Math.min(Math.max(state.page, 0), pages - 1);
      const from = state.page * PAGE;
      const shown = state.order.slice(from, from + PAGE);
      body.replaceChildren(...shown.map((i, at) =>
        el("tr", { "data-at": String(from + at), class: from + at === state.current ? "current" : null },
          ...columns.map((column, c) => {
            if (c === 0) return el("td", {}, el("button", { type: "button", tabindex: from + at === state.current ? "0" : "-1", title: rows.id[i] }, rows.id[i]));
            if (column.regime) {
              const regime = run.regimes[rows.g[i]];
              return el("td", { class: "left" }, ...(regime ? [el("span", { class: `swatch ${regime.code}` }), regime.name] : ["–"]), rows.ood[i] === "1" ? el("span", { class: "chip alert", title: "out of distribution" }, "ood") : null);
            }
            return el("td", { class: column.left ? "left" : null }, column.show(i));
          }))));
      if (!shown.length) body.append(el("tr", {}, el("td", { class: "empty", colspan: String(columns.length) }, "No pair matches.")));
      status.textContent = `${count(state.order.length)} of ${count(n)} pair${n === 1 ? "" : "s"}` + (pages > 1 ? `, page ${state.page + 1} of ${pages}` : "");
      section.querySelector('[data-page="-1"]').disabled = state.page === 0;
      section.querySelector('[data-page="1"]').disabled = state.page === pages - 1;
    }
    function page(by) { state.page += by; draw(); state.current = state.page * PAGE; draw(); }
    function first() { state.current = 0; move(0); }
    function move(by) {
      if (!state.order.length) return;
      const inside = body.contains(document.activeElement);
      state.current = Math.min(Math.max(state.current + (inside ? by : 0), 0), state.order.length - 1);
      state.page = Math.floor(state.current / PAGE);
      draw();
      body.querySelector(`[data-at="${state.current}"] button`).focus();
    }
    body.addEventListener("click", (event) => {
      const tr = event.target.closest("tr[data-at]");
      if (!tr) return;
      state.current = Number(tr.dataset.at);
      draw();
      body.querySelector(`[data-at="${state.current}"] button`).focus({ preventScroll: true });
      show(run, state.order, state.current);
    });
    body.addEventListener("keydown", (event) => {
      const by = { ArrowDown: 1, ArrowUp: -1, Home: -Infinity, End: Infinity }[event.key];
      if (by) { move(Number.isFinite(by) ? by : by > 0 ? n : -n); event.preventDefault(); }
    });
    for (const button of section.querySelectorAll("[data-page]")) button.addEventListener("click", () => page(Number(button.dataset.page)));
    for (const control of Object.values(controls)) if (control) control.addEventListener(control.type === "search" ? "input" : "change", update);
    controls.text.addEventListener("keydown", (event) => {
      // All three leave the box, so that single keys act on the table again.
      if (event.key === "Escape") { controls.text.value = ""; update(); controls.text.blur(); event.preventDefault(); }
      if (event.key === "Enter" || event.key === "ArrowDown") { controls.text.blur(); first(); event.preventDefault(); }
    });
    update();
    return { move, page, search: controls.text };
  }

  // --- putting it together -------------------------------------------------------------------------------------------

  const sections = [...document.querySelectorAll("section[data-run]")];
  const tables = sections.map((section) => {
    const run = read(`run-${section.dataset.run}`);
    galleries(run, section);
    section.addEventListener("click", (event) => {
      const point = event.target.closest("circle[data-row]");
      if (point) show(run, [Number(point.dataset.row)], 0);
    });
    return pairTable(run, section);
  });

  edges();

  const tabs = [...document.querySelectorAll('[role="tab"]')];
  const navigation = document.querySelector(".masthead nav");
  let active = 0;
  function open(index, focus) {
    active = index;
    tabs.forEach((tab, i) => {
      tab.setAttribute("aria-selected", String(i === index));
      tab.tabIndex = i === index ? 0 : -1;
      if (focus && i === index) tab.focus();
    });
    sections.forEach((section, i) => { section.hidden = i !== index; });
    const links = [...sections[index].querySelectorAll("h2[id]")].map((h2) => el("a", { href: `#${h2.id}` }, h2.dataset.short || h2.textContent));
    navigation.replaceChildren(...(tabs.length ? [el("a", { href: "#comparison" }, "Comparison")] : []), ...links);
  }
  tabs.forEach((tab, i) => {
    tab.addEventListener("click", () => open(i));
    tab.addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (by) open((i + by + tabs.length) % tabs.length, true);
    });
  });
  open(0);

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (event.target.matches('input:not([type="checkbox"])')) return;
    // Letters choose an option there.
    if (event.target.matches("select") && /^[a-z]$/i.test(event.key)) return;
    const table = tables[active];
    const actions = {
      "/": () => { table.search.focus(); table.search.select(); },
      j: () => table.move(1),
      k: () => table.move(-1),
      "[": () => table.page(-1),
      "]": () => table.page(1),
      t: flip,
      "?": () => help.showModal(),
    };
    if (actions[event.key]) { actions[event.key](); event.preventDefault(); }
  });
  document.documentElement.dataset.ready = "true";
})();
