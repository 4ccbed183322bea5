// Loaded into Azurite before its own code: whoever logs in to the twin may use its blobs, if a role says so.
"use strict";
const fs = require("fs");
const path = require("path");

const blob = path.dirname(process.argv[1]);
const kind = require(path.join(blob, "authentication", "BlobTokenAuthenticator.js")).default.prototype;
const errors = require(path.join(blob, "errors", "StorageErrorFactory.js")).default;
const { verify } = require(require.resolve("jsonwebtoken", { paths: [blob] }));

// The twin writes who may read, and who may write as well, by account and object id; and what it signs tokens with.
function logins() {
  return JSON.parse(fs.readFileSync("logins", "utf8"));
}

// Azurite wants TLS for tokens. This one answers on loopback only, and the tokens are the twin's own.
const validate = kind.validate;
kind.validate = async function (request, context) {
  const here = Object.create(request, { getProtocol: { value: () => "https" } });
  const answer = await validate.call(this, here, context);
  if (answer !== true) return answer; // no token: others may know who it is
  const known = logins();
  const token = request.getHeader("authorization").replace(/^bearer /i, "");
  let claims;
  try {
    claims = verify(token, known.key, { algorithms: ["HS256"] });
  } catch (error) {
    throw errors.getAuthenticationFailed(context.contextId, `The token was not given by this twin: ${error.message}`);
  }
  const writes = (known.accounts[context.context.account] || {})[claims.oid];
  const reading = ["GET", "HEAD"].includes(request.getMethod()) || request.getQuery("comp") === "userdelegationkey";
  if (writes === undefined || !(writes || reading)) {
    throw errors.getAuthorizationPermissionMismatch(context.contextId);
  }
  return true;
};
