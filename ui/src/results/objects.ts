// The addresses of artifacts, models and images. Clients name the file server by their own address for it, which may differ
// from this page's.

const OBJECTS = "/files/";

/** The address of an object for this page; `null` if a browser cannot fetch it, as with `s3://` and `file://`. */
export function address(uri: string): { href: string; ours: boolean } | null {
  let url: URL;
  try {
    url = new URL(uri);
  } catch {
    return null;
  }
  if (url.protocol !== "http:" && url.protocol !== "https:") return null;
  if (url.pathname.startsWith(OBJECTS)) return { href: `/ui/-/files/${url.pathname.slice(OBJECTS.length)}`, ours: true };
  return { href: url.href, ours: false };
}

/** An object of our server as a `data:` address, for who may not ask the server. */
export async function embedded(uri: string): Promise<string> {
  const found = address(uri);
  if (!found?.ours) return uri;
  const response = await fetch(found.href, { credentials: "same-origin" });
  if (!response.ok) return uri;
  const blob = await response.blob();
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(String(reader.result));
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}
