// A new JWK set with one key, on standard output. The word is the key's id.
import { exportJWK, generateKeyPair } from "jose";

const { privateKey } = await generateKeyPair("RS256", { extractable: true });
console.log(JSON.stringify({ keys: [{ ...(await exportJWK(privateKey)), kid: process.argv[2], use: "sig", alg: "RS256" }] }));
