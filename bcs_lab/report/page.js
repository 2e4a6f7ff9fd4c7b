// What the pages of a report share: elements, theme, sorting of tables, and shadows at the edges of wide ones.
const bcsPage = (() => {
  "use strict";
  /** An element: properties, dataset and ARIA from `options`, children as nodes or text. */
  function el(tag, options, ...children) {
    const node = document.createElement(tag);
    for (const [key, value] of Object.entries(options || {})) {
      if (value === null || value === undefined || value === false) continue;
      if (key === "class") node.className = value;
      else if (key === "style") Object.assign(node.style, value);
      else if (key === "on") for (const [event, action] of Object.entries(value)) node.addEventListener(event, action);
      else node.setAttribute(key, value === true ? "" : value);
    }
    node.append(...children.filter((child) => child !== null && child !== undefined));
    return node;
  }

  // --- theme ---------------------------------------------------------------------------------------------------------

  const root = document.documentElement;
  const themeButton = document.getElementById("theme");
  function theme(name, keep) {
    root.dataset.theme = name;
    themeButton.textContent = name === "dark" ? "Light" : "Dark";
    themeButton.setAttribute("aria-label", `Switch to the ${name === "dark" ? "light" : "dark"} theme`);
    if (keep) try { localStorage.setItem("bcs-theme", name); } catch { /* not kept */ }
  }
  const flip = () => theme(root.dataset.theme === "dark" ? "light" : "dark", true);
  theme(root.dataset.theme || "light");
  themeButton.addEventListener("click", flip);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => {
    let kept = null;
    try { kept = localStorage.getItem("bcs-theme"); } catch { /* none kept */ }
    if (!kept) theme(event.matches ? "dark" : "light");
  });

  // --- sorting of the small tables -----------------------------------------------------------------------------------

  for (const table of document.querySelectorAll("table[data-sortable]")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((th, c) => {
      const label = th.textContent;
      th.replaceChildren(el("button", { type: "button", on: { click: () => {
        const up = th.getAttribute("aria-sort") === "descending" || (c === 0 && th.getAttribute("aria-sort") !== "ascending");
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        th.setAttribute("aria-sort", up ? "ascending" : "descending");
        const body = table.tBodies[0];
        const value = (row) => row.cells[c].dataset.value ?? row.cells[c].textContent;
        body.append(...[...body.rows].sort((a, b) => {
          const [x, y] = [value(a), value(b)];
          if (x === "" || y === "") return (x === "") - (y === "");
          const [p, q] = [Number(x), Number(y)];
          const order = Number.isNaN(p) || Number.isNaN(q) ? x.localeCompare(y) : p - q;
          return up ? order : -order;
        }));
      } } }, label));
    });
  }

  // Tables that are wider than their place say so by a shadow; see .edges in the style sheet.
  function edges() {
    const watch = new ResizeObserver((entries) => { for (const entry of entries) edge(entry.target.closest(".scroll")); });
    function edge(box) {
      const rest = box.scrollWidth - box.clientWidth;
      box.parentNode.classList.toggle("more-left", rest > 1 && box.scrollLeft > 1);
      box.parentNode.classList.toggle("more-right", rest > 1 && box.scrollLeft < rest - 1);
    }
    for (const box of document.querySelectorAll("main .scroll")) {
      const around = el("div", { class: box.matches(".table6, .sticky") ? "edges still" : "edges" });
      box.replaceWith(around);
      around.append(box);
      box.addEventListener("scroll", () => edge(box), { passive: true });
      watch.observe(box);
      watch.observe(box.firstElementChild);
    }
  }

  return { el, flip, edges };
})();
