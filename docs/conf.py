"""How Sphinx builds these pages: `make docs`. Nothing is fetched, and a warning is an error."""

from bcs_lab import __version__

project = "bcs_lab"
author = "The bcs_lab authors"
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
root_doc = "index"
language = "en"
smartquotes_action = "D"  # dashes only

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings say shapes, units and ranges, which types do not
autodoc_class_signature = "mixed"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # attributes of dataclasses are described once, in their class
napoleon_attr_annotations = False
napoleon_use_rtype = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
add_module_names = False

html_theme = "furo"
html_title = f"bcs_lab {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0f5e9c", "color-brand-content": "#0f5e9c"},
    "dark_css_variables": {"color-brand-primary": "#7cc0f4", "color-brand-content": "#7cc0f4"},
}
