// The page of an audit: pictures are kept once, tables sort, and one metric's gallery is shown at a time.
(() => {
  "use strict";
  const { el, flip, edges } = bcsPage;
  const images = JSON.parse(document.getElementById("images").textContent);
  for (const image of document.querySelectorAll("img[data-at]")) image.src = images[Number(image.dataset.at)];
  edges();
  const links = [...document.querySelectorAll("h2[id]")].map((h2) => el("a", { href: `#${h2.id}` }, h2.dataset.short || h2.textContent));
  document.querySelector(".masthead nav").replaceChildren(...links);
  document.addEventListener("keydown", (event) => {
    if (event.key === "t" && !event.ctrlKey && !event.metaKey && !event.altKey) flip();
  });
  const tabs = [...document.querySelectorAll("[role=tab]")];
  function show(chosen) {
    for (const tab of tabs) {
      const mine = tab === chosen;
      tab.setAttribute("aria-selected", String(mine));
      tab.tabIndex = mine ? 0 : -1;
      document.getElementById(tab.getAttribute("aria-controls")).hidden = !mine;
    }
  }
  tabs.forEach((tab, at) => {
    tab.addEventListener("click", () => show(tab));
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const next = tabs[(at + step + tabs.length) % tabs.length];
      show(next);
      next.focus();
    });
  });
  if (tabs.length) show(tabs[0]);
  document.documentElement.dataset.ready = "true";
})();
