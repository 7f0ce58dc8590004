// Questions to the server. Every answer is JSON; an error says what, where and what next.

export class ApiError extends Error {
  constructor(status, told) {
    super(told.what || "the server answered " + status);
    this.status = status;
    this.what = told.what || "The server answered " + status;
    this.where = told.where || "";
    this.next = told.next || "";
  }
}

export function query(values) {
  const asked = new URLSearchParams();
  for (const [name, value] of values instanceof URLSearchParams ? values : Object.entries(values || {})) {
    for (const one of Array.isArray(value) ? value : [value])
      if (one !== null && one !== undefined && one !== "") asked.append(name, String(one));
  }
  return asked;
}

async function answer(promise) {
  let response;
  try {
    response = await promise;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, {
      what: "The server does not answer",
      where: location.origin,
      next: "Is `tokmill explore` still running? Start it again and reload.",
    });
  }
  let told = null;
  try {
    told = await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
  }
  if (!response.ok) throw new ApiError(response.status, (told && told.error) || {});
  if (told === null) throw new ApiError(response.status, { what: "The answer is no JSON" });
  return told;
}

export function get(name, values, signal) {
  const asked = query(values).toString();
  return answer(
    fetch("api/" + name + (asked ? "?" + asked : ""), {
      signal,
      credentials: "same-origin",
      headers: { Accept: "application/json" },
    }),
  );
}

export function post(name, value) {
  return answer(
    fetch("api/" + name, {
      method: "POST",
      credentials: "same-origin",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(value),
    }),
  );
}
