// A real identity provider: oidc-provider, which is certified by the OpenID Foundation. Words: PORT PEOPLE KEYS REDIRECT.
// PEOPLE is a JSON file {login: {groups: […]}} that is read at every question, so that a test can remove people. KEYS is a JWK set.
import { readFileSync } from "node:fs";
import { Provider } from "oidc-provider";

const [port, people, keys, redirect] = process.argv.slice(2);
const DEVICE = "urn:ietf:params:oauth:grant-type:device_code";
const provider = new Provider(`http://127.0.0.1:${port}`, {
  clients: [
    {
      client_id: "cantle",
      client_secret: "the secret of cantle",
      redirect_uris: [redirect],
      grant_types: ["authorization_code", "refresh_token", DEVICE],
    },
  ],
  claims: { openid: ["sub"], profile: ["preferred_username"], email: ["email"], groups: ["groups"] },
  scopes: ["openid", "profile", "email", "groups", "offline_access"],
  features: { deviceFlow: { enabled: true } },
  pkce: { required: (_, client) => client.redirectUris.length > 0 },
  jwks: JSON.parse(readFileSync(keys)),
  cookies: { keys: ["of a test"] },
  async findAccount(_, login) {
    const found = JSON.parse(readFileSync(people))[login];
    if (!found) return undefined;
    return {
      accountId: login,
      claims: () => ({ sub: login, preferred_username: login, email: `${login}@example.org`, groups: found.groups }),
    };
  },
});
provider.listen(Number(port), "127.0.0.1", () => console.log("ready"));
