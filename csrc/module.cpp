// fastreader._C<ABI>: importing it registers the CPU kernels. It also reports the machine's instruction set.

#include <Python.h>

#include "isa.h"

#define FR_TEXT_(name) #name
#define FR_TEXT(name) FR_TEXT_(name)
#define FR_JOIN_(a, b) a##b
#define FR_JOIN(a, b) FR_JOIN_(a, b)

namespace {

PyObject* best_isa(PyObject*, PyObject*) { return PyUnicode_FromString(fastreader::isa_name(fastreader::best_isa())); }

PyMethodDef methods[] = {
    {"best_isa", best_isa, METH_NOARGS, "Return the best instruction set of this machine that has kernels."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "fastreader." FR_TEXT(TORCH_EXTENSION_NAME), nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

} // namespace

PyMODINIT_FUNC FR_JOIN(PyInit_, TORCH_EXTENSION_NAME)() { return PyModule_Create(&module); }
