// Names of folders in addresses of pages.

export const pathOf = (at, name) => (at ? `${at}/${name}` : name);
export const addressOf = (page, at) => `#/${page}/${at.split("/").map(encodeURIComponent).join("/")}`;
const beside = (at, name) => [...at.split("/").slice(0, -1), name].join("/");
/** The folder of the run that a request to sort asks for. */
export const runOf = ({ at, run }) => beside(at, run);
export const nameOf = (at) => at.split("/").pop();
