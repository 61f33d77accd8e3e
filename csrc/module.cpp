// fastreader._C<ABI>: importing it registers the CPU kernels. It also reports the machine's instruction set.

#include <Python.h>

#include "isa.h"

#define FR_TEXT_(name) #name
#define FR_TEXT(name) FR_TEXT_(name)
#define FR_JOIN_(a, b) a##b
#define FR_JOIN(a, b) FR_JOIN_(a, b)

namespace {

PyObject* best_isa(PyObject*, PyObject*) { return PyUnicode_FromString(fastreader::isa_name(fastreader::best_isa())); }

PyObject* isas(PyObject*, PyObject*) {
  PyObject* names = PyList_New(0);
  for (int i = 0; names != nullptr && i < fastreader::kIsaCount; ++i) {
    const fastreader::Isa isa = static_cast<fastreader::Isa>(i);
    if (!fastreader::has_isa(isa)) continue;
    PyObject* name = PyUnicode_FromString(fastreader::isa_name(isa));
    if (name == nullptr || PyList_Append(names, name) != 0) Py_CLEAR(names);
    Py_XDECREF(name);
  }
  return names;
}

PyMethodDef methods[] = {
    {"best_isa", best_isa, METH_NOARGS, "Return the best instruction set of this machine that has kernels."},
    {"isas", isas, METH_NOARGS, "Return the instruction sets of this machine that have kernels, in rising order."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "fastreader." FR_TEXT(TORCH_EXTENSION_NAME), nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

} // namespace

PyMODINIT_FUNC FR_JOIN(PyInit_, TORCH_EXTENSION_NAME)() { return PyModule_Create(&module); }
