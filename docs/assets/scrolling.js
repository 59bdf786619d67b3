// What is wider than a narrow screen, a picture, a table or a formula, is scrolled: the keyboard reaches it too.
(function () {
  function reach(place, name) {
    if (place.scrollWidth > place.clientWidth) {
      place.tabIndex = 0;
      place.setAttribute("role", "region");
      place.setAttribute("aria-label", name);
    } else {
      place.removeAttribute("tabindex");
      place.removeAttribute("role");
      place.removeAttribute("aria-label");
    }
  }
  function reachAll() {
    document.querySelectorAll(".md-typeset p > img:only-child").forEach(function (picture) {
      reach(picture.parentElement, picture.alt);
    });
    document.querySelectorAll("div.arithmatex").forEach(function (formula) {
      reach(formula, "formula");
    });
    document.querySelectorAll(".md-typeset__scrollwrap").forEach(function (table) {
      reach(table, "table");
    });
  }
  // Pictures have their width, and the theme has wrapped its tables, when all is loaded.
  window.addEventListener("load", reachAll);
  window.addEventListener("resize", reachAll);
  if (window.document$) {
    window.document$.subscribe(function () {
      setTimeout(reachAll, 300);
    });
  }
})();
