// The chooser of versions in the header, and a line over pages that are not of the newest release.
// `versions.js` beside the folders of all versions says which there are: a page of an old version knows the newest one, too.
const here = document.querySelector("script[data-version]")?.dataset; // the page of what is not found has none
if (here) {
  const all = window.rivertwiceVersions ?? [];
  const pageOf = ({ name, pages }) => `${here.root}${name}/${pages.includes(here.page) ? here.page : "index.html"}`;
  const link = (version, text, kind) => {
    const made = document.createElement("a");
    made.href = pageOf(version);
    made.textContent = text;
    made.className = kind;
    return made;
  };

  const title = document.querySelector(".md-header__topic");
  if (title && all.length > 1) {
    const list = document.createElement("ul");
    list.className = "md-version__list";
    for (const version of all) {
      const item = document.createElement("li");
      item.className = "md-version__item";
      item.append(link(version, version.name, "md-version__link"));
      list.append(item);
    }
    const current = document.createElement("button");
    current.className = "md-version__current";
    current.textContent = here.version;
    current.setAttribute("aria-label", `Version ${here.version}; choose another`);
    const chooser = document.createElement("div");
    chooser.className = "md-version";
    chooser.append(current, list);
    title.querySelector(".md-ellipsis").textContent = here.site;
    title.append(chooser);
  }

  const newest = all.find(({ name }) => name !== "unreleased");
  if (newest && newest.name !== here.version) {
    const line = document.createElement("div");
    line.className = "md-banner__inner md-grid md-typeset";
    const fact = here.version === "unreleased" ? "This is not released yet." : `This is version ${here.version}.`;
    line.append(`${fact} The newest release is `, link(newest, newest.name, ""), ".");
    const banner = document.createElement("aside");
    banner.className = "md-banner";
    banner.append(line);
    document.querySelector("[data-md-component=announce]").append(banner);
  }
}
