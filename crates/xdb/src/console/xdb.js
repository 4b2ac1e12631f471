// Reads the page again every two seconds, and replaces the regions that are marked with data-refresh, except the one
// with the keyboard's focus. Without JavaScript, a reader reloads the page.
"use strict";
(() => {
  const regions = (page) => [...page.querySelectorAll("[data-refresh]")];
  if (regions(document).length === 0) return;
  const note = document.getElementById("trouble");
  const say = (problem) => {
    note.textContent = problem;
    note.hidden = problem === "";
  };
  const refresh = async () => {
    const selection = document.getSelection();
    if (!document.hidden && (!selection || selection.isCollapsed)) {
      try {
        const answer = await fetch(location.href, { headers: { accept: "text/html", "xdb-read-again": "1" } });
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        const problem = page.querySelector("main [role=alert]")?.textContent ?? "";
        // Another page than this one: the visit is over, or what this page could not show is there.
        if (answer.status === 401 || (problem === "" && page.title !== document.title)) return location.reload();
        if (problem === "") {
          const fresh = regions(page);
          regions(document).forEach((region, n) => {
            if (fresh[n] && !region.contains(document.activeElement)) region.replaceChildren(...fresh[n].childNodes);
          });
        }
        say(page.title === document.title || problem === "" ? "" : problem);
      } catch {
        say("not connected: the console does not answer");
      }
    }
    setTimeout(refresh, 2000);
  };
  setTimeout(refresh, 2000);
})();
