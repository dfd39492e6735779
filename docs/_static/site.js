// Gives each cell the text of its heading, which the styles for phones show beside it.
document.addEventListener("DOMContentLoaded", () => {
  for (const table of document.querySelectorAll("table.docutils")) {
    const labels = [...table.querySelectorAll("thead th")].map((head) => head.textContent.trim());
    if (labels.length === 0) continue;
    table.classList.add("labelled");
    if (labels.length === 2) continue; // the second column needs no name
    for (const row of table.querySelectorAll("tbody tr")) {
      [...row.cells].forEach((cell, index) => {
        if (cell.textContent.trim()) cell.dataset.label = labels[index] ?? "";
      });
    }
  }
  // A dotted name in a narrow column is broken behind a dot.
  for (const code of document.querySelectorAll(".long-code td code .pre")) {
    const parts = code.textContent.split(/(?<=\.)(?=\w)/);
    code.replaceChildren(...parts.flatMap((part) => [part, document.createElement("wbr")]));
  }
});
