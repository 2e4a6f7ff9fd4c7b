// The page about agreement: its tables sort, and its sections stand in the head of the page.
(() => {
  "use strict";
  const { el, flip, edges } = bcsPage;
  edges();
  const links = [...document.querySelectorAll("h2[id]")].map((h2) => el("a", { href: `#${h2.id}` }, h2.dataset.short || h2.textContent));
  document.querySelector(".masthead nav").replaceChildren(...links);
  document.addEventListener("keydown", (event) => {
    if (event.key === "t" && !event.ctrlKey && !event.metaKey && !event.altKey) flip();
  });
  const all = document.getElementById("open-all");
  if (all) all.addEventListener("click", () => {
    const details = [...document.querySelectorAll(".card details")];
    const open = details.some((item) => !item.open);
    for (const item of details) item.open = open;
    all.textContent = open ? "Hide all rationales" : "Show all rationales";
  });
  document.documentElement.dataset.ready = "true";
})();
