// Tables as files for a spreadsheet.

function field(value: unknown): string {
  const text = String(value ?? "");
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** Has the browser save a table: the first row is its head. */
export function saveCsv(name: string, rows: unknown[][]): void {
  const anchor = document.createElement("a");
  anchor.href = URL.createObjectURL(new Blob([rows.map((row) => `${row.map(field).join(",")}\n`).join("")], { type: "text/csv" }));
  anchor.download = name;
  anchor.click();
  URL.revokeObjectURL(anchor.href);
}
