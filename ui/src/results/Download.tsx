import { address } from "./objects";

/** A link to an object, or its address where a browser cannot follow it. */
export function Download({ uri, label }: { uri: string | undefined; label: string }) {
  if (!uri) return <span class="muted">not uploaded</span>;
  const found = address(uri);
  if (!found) return <code title="A browser cannot open this address">{uri}</code>;
  const elsewhere = found.ours ? {} : { target: "_blank", rel: "noreferrer" };
  return (
    <a href={found.href} download={found.ours} title={uri} aria-label={`Download ${label}`} {...elsewhere}>
      {found.ours ? "Download" : "Open"}
    </a>
  );
}
