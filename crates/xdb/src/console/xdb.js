// Reads the page again every two seconds, and replaces the regions that are marked with data-refresh. Without
// JavaScript, a reader reloads the page.
"use strict";
(() => {
  const regions = (page) => [...page.querySelectorAll("[data-refresh]")];
  if (regions(document).length === 0) return;
  const refresh = async () => {
    const selection = document.getSelection();
    const isBusy = document.hidden || (selection && !selection.isCollapsed);
    const inside = regions(document).some((region) => region.contains(document.activeElement));
    if (!isBusy && !inside) {
      try {
        const answer = await fetch(location.href, { headers: { accept: "text/html" } });
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        const fresh = regions(page);
        if (answer.ok) regions(document).forEach((region, n) => fresh[n] && region.replaceChildren(...fresh[n].childNodes));
        document.body.toggleAttribute("data-lost", !answer.ok);
      } catch {
        document.body.toggleAttribute("data-lost", true);
      }
    }
    setTimeout(refresh, 2000);
  };
  setTimeout(refresh, 2000);
})();
