"use strict";

// Sort a table by clicking a column title, or by pressing Enter or Space on it; again for the other direction.
for (const table of document.querySelectorAll("table.sortable")) {
  const headers = [...table.tHead.rows[table.tHead.rows.length - 1].cells];
  headers.forEach((header, column) => {
    header.querySelector("button").addEventListener("click", () => {
      const numbers = column > 0;
      const before = header.getAttribute("aria-sort");
      // Numbers start with the highest, names with the first letter.
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
    return (x === undefined) - (y === undefined); // missing values come last in both directions
  }
  const order = numbers ? Number(x) - Number(y) : x.localeCompare(y, "en", { numeric: true });
  return ascending ? order : -order;
}

// Open everything that is folded while printing.
let folded = [];
addEventListener("beforeprint", () => {
  folded = [...document.querySelectorAll("details:not([open])")];
  folded.forEach((details) => { details.open = true; });
});
addEventListener("afterprint", () => {
  folded.forEach((details) => { details.open = false; });
});
