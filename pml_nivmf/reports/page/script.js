"use strict";

// Tables sort by a click on a column's title, or by Enter or Space on it: up, then down.
for (const table of document.querySelectorAll("table.sortable")) {
  const headers = [...table.tHead.rows[table.tHead.rows.length - 1].cells];
  headers.forEach((header, column) => {
    header.querySelector("button").addEventListener("click", () => {
      const numbers = column > 0;
      const before = header.getAttribute("aria-sort");
      // Of numbers the highest is wanted first.
      const ascending = before === null ? !numbers : before === "descending";
      headers.forEach((other) => other.removeAttribute("aria-sort"));
      header.setAttribute("aria-sort", ascending ? "ascending" : "descending");
      const rows = [...table.tBodies[0].rows];
      rows.sort((a, b) => compare(a.cells[column], b.cells[column], numbers, ascending));
      table.tBodies[0].append(...rows);
    });
  });
}

function compare(a, b, numbers, ascending) {
  const [x, y] = [a.dataset.value, b.dataset.value];
  if (x === undefined || y === undefined) {
    return (x === undefined) - (y === undefined); // what is missing comes last, either way
  }
  const order = numbers ? Number(x) - Number(y) : x.localeCompare(y, "en", { numeric: true });
  return ascending ? order : -order;
}

// Paper cannot be clicked: everything that is folded in opens for printing, and folds in again.
let folded = [];
addEventListener("beforeprint", () => {
  folded = [...document.querySelectorAll("details:not([open])")];
  folded.forEach((details) => { details.open = true; });
});
addEventListener("afterprint", () => {
  folded.forEach((details) => { details.open = false; });
});
