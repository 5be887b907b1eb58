// Sorts a table by the column whose header is clicked; copies commands.

function sortBy(table, column, header) {
  const up = header.getAttribute("aria-sort") !== "ascending";
  for (const other of header.parentNode.children) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", up ? "ascending" : "descending");
  const key = (row) => row.cells[column].dataset.value;
  const compare = (a, b) => {
    const [one, two] = [key(a), key(b)];
    if (one === "" || two === "") return (one === "") - (two === ""); // unknown values last
    const numbers = [Number(one), Number(two)];
    const order = numbers.some(Number.isNaN) ? one.localeCompare(two) : numbers[0] - numbers[1];
    return up ? order : -order;
  };
  const body = table.tBodies[0];
  body.append(...[...body.rows].sort(compare));
}

for (const table of document.querySelectorAll("table.sortable")) {
  [...table.tHead.rows[0].cells].forEach((header, column) => {
    header.querySelector("button").addEventListener("click", () => sortBy(table, column, header));
  });
}

for (const button of document.querySelectorAll("button.copy")) {
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(button.previousElementSibling.textContent);
    button.textContent = "Copied";
  });
}
